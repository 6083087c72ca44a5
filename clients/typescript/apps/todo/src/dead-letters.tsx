/** Edits that the server refused for good: still here, to be sent again or given up. */
import type { DeadLetter, LocalDB } from "@mainstem/client";
import { useEffect, useState } from "react";

export function DeadLetters({ db, count }: { db: LocalDB; count: number }) {
  const [letters, setLetters] = useState<readonly DeadLetter[]>([]);
  useEffect(() => {
    let current = true;
    void db.deadLetters().then((found) => current && setLetters(found));
    return () => {
      current = false;
    };
  }, [db, count]);

  return (
    <section className="notice" aria-label="Refused edits">
      <h2>{count === 1 ? "The server refused an edit" : `The server refused ${count} edits`}</h2>
      <ul>
        {letters.map(({ id, delta, message }) => (
          <li key={id}>
            <span>
              {describe(delta)}
              <small>{message}</small>
            </span>
            <button type="button" className="quiet" onClick={() => void db.retryDeadLetter(id)}>
              Send again
            </button>
            <button type="button" className="quiet" onClick={() => void db.discardDeadLetter(id)}>
              Give up
            </button>
          </li>
        ))}
      </ul>
    </section>
  );
}

const WORDS: Record<string, string> = { title: "text", done: "done", rank: "place" };

function describe({ op, columns }: DeadLetter["delta"]): string {
  if (op === "DELETE") return "Delete";
  const title = columns.find(({ column }) => column === "title")?.value;
  if (op === "INSERT" && typeof title === "string") return `New: “${title}”`;
  return columns.map(({ column, value }) => `${WORDS[column] ?? column}: ${String(value)}`).join(", ");
}
