/** One row: complete, edit in place, move, delete; and a word on what the sync did with it. */
import { useEffect, useRef, useState, type HTMLAttributes, type KeyboardEvent } from "react";
import type { Todo } from "./todos";

interface ItemProps {
  readonly todo: Todo;
  readonly shift: number;
  readonly lifted: boolean;
  readonly handle: HTMLAttributes<HTMLElement>;
  readonly onStep: (step: -1 | 1) => void;
  readonly onComplete: (id: string, done: boolean) => void;
  readonly onRename: (id: string, title: string) => void;
  readonly onRemove: (todo: Todo) => void;
  readonly onDismiss: (id: string) => void;
}

export function Item({ todo, shift, lifted, handle, onStep, onComplete, onRename, onRemove, onDismiss }: ItemProps) {
  const [editing, setEditing] = useState(false);
  const [asking, setAsking] = useState(false);
  const title = useRef<HTMLButtonElement>(null);
  const stopEditing = (): void => {
    setEditing(false);
    requestAnimationFrame(() => title.current?.focus());
  };

  const steps = (event: KeyboardEvent): void => {
    if (!event.altKey || (event.key !== "ArrowUp" && event.key !== "ArrowDown")) return;
    event.preventDefault();
    onStep(event.key === "ArrowUp" ? -1 : 1);
  };

  return (
    <li
      className={["item", todo.done && "done", lifted && "lifted"].filter(Boolean).join(" ")}
      style={shift ? { transform: `translateY(${shift}px)` } : undefined}
      onKeyDown={steps}
      data-id={todo.id}
    >
      <button type="button" className="handle" aria-label={`Move ${todo.title}. Alt and the arrow keys move it too.`} {...handle}>
        <svg viewBox="0 0 10 16" aria-hidden="true">
          {[2, 8, 14].flatMap((y) => [2, 8].map((x) => <circle key={`${x}${y}`} cx={x} cy={y} r="1.4" />))}
        </svg>
      </button>
      <label className="check">
        <input
          type="checkbox"
          checked={todo.done}
          onChange={(event) => onComplete(todo.id, event.target.checked)}
          aria-label={`Done: ${todo.title}`}
        />
        <svg viewBox="0 0 20 20" aria-hidden="true">
          <path d="m5 10.5 3.4 3.5L15 6.6" />
        </svg>
      </label>
      {editing ? (
        <Editor
          title={todo.title}
          onSave={(text) => {
            if (text) onRename(todo.id, text);
            stopEditing();
          }}
          onCancel={stopEditing}
        />
      ) : (
        <button ref={title} type="button" className="title" onClick={() => setEditing(true)} title="Edit">
          {todo.title || <em>Untitled</em>}
        </button>
      )}
      <span className="marks">
        {todo.merged && (
          <button type="button" className="mark merged" aria-expanded={asking} onClick={() => setAsking(!asking)}>
            merged
          </button>
        )}
        {todo.pending && (
          <span className="mark pending" title="Saved here; not on the server yet">
            waiting
          </span>
        )}
      </span>
      <button type="button" className="icon delete" aria-label={`Delete ${todo.title}`} onClick={() => onRemove(todo)}>
        <svg viewBox="0 0 20 20" aria-hidden="true">
          <path d="m6 6 8 8m0-8-8 8" />
        </svg>
      </button>
      {todo.merged && asking && (
        <Merged
          todo={todo}
          onTakeBack={(text) => (onRename(todo.id, text), onDismiss(todo.id))}
          onDismiss={() => onDismiss(todo.id)}
        />
      )}
    </li>
  );
}

function Editor({ title, onSave, onCancel }: { title: string; onSave: (title: string) => void; onCancel: () => void }) {
  const [text, setText] = useState(title);
  const input = useRef<HTMLInputElement>(null);
  // Escape takes the field away, and that blurs it: then nothing must be saved.
  const settled = useRef(false);
  useEffect(() => input.current?.select(), []);
  const settle = (then: () => void): void => {
    if (settled.current) return;
    settled.current = true;
    then();
  };
  return (
    <input
      ref={input}
      className="editor"
      aria-label="Edit to-do"
      value={text}
      maxLength={500}
      autoFocus
      onChange={(event) => setText(event.target.value)}
      onBlur={() => settle(() => onSave(text.trim()))}
      onKeyDown={(event) => {
        if (event.key === "Enter") settle(() => onSave(text.trim()));
        if (event.key === "Escape") settle(onCancel);
      }}
    />
  );
}

/** What was merged, in words that need no pointer to be seen; and one's own text, to be taken back. */
function Merged({ todo, onTakeBack, onDismiss }: { todo: Todo; onTakeBack: (text: string) => void; onDismiss: () => void }) {
  const mine = todo.merged?.mine?.["title"];
  const lost = typeof mine === "string" && mine !== todo.title ? mine : undefined;
  return (
    <div className="merge-note" role="group" aria-label={`What was merged into ${todo.title}`}>
      <p>{mergedText(todo)}</p>
      {lost !== undefined && <p>You had written “{lost}”.</p>}
      {lost !== undefined && (
        <button type="button" onClick={() => onTakeBack(lost)}>
          Take mine back
        </button>
      )}
      <button type="button" className="quiet" onClick={onDismiss}>
        {lost === undefined ? "All right" : "Keep theirs"}
      </button>
    </div>
  );
}

const WORDS: Record<string, string> = { title: "text", done: "checkmark", rank: "place" };

function mergedText({ merged }: Todo): string {
  if (!merged) return "";
  const words = (columns: readonly string[]): string => columns.map((column) => WORDS[column] ?? column).join(", ");
  const parts = ["Also changed on another device."];
  if (merged.took.length > 0) parts.push(`Taken from there: ${words(merged.took)}.`);
  if (merged.kept.length > 0) parts.push(`Yours is newer: ${words(merged.kept)}.`);
  return parts.join(" ");
}
