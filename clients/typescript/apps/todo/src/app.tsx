/** The page: the list, what can be done to it, and how the sync is doing. */
import type { LocalDB, SyncCoordinator } from "@mainstem/client";
import { useSyncStatus, useTable } from "@mainstem/client/react";
import { useEffect, useMemo, useState, type FormEvent } from "react";
import { DeadLetters } from "./dead-letters";
import { List } from "./list";
import type { Settings } from "./settings";
import { SettingsDialog } from "./settings-dialog";
import { StatusPill } from "./status-pill";
import { TABLE, TodoList, todosOf, type Todo } from "./todos";

const FILTERS = { all: "All", open: "To do", done: "Done" } as const;
type Filter = keyof typeof FILTERS;

/** How long a deletion can be taken back. */
const UNDO_MS = 10_000;

export function App({ db, sync, settings }: { db: LocalDB; sync: SyncCoordinator; settings: Settings }) {
  const rows = useTable(db, TABLE);
  const status = useSyncStatus(sync);
  // Without a server every edit waits, and saying so of each would say nothing.
  const todos = useMemo(() => rows && todosOf(rows, Boolean(settings.server)), [rows, settings]);
  const list = useMemo(() => new TodoList(sync.tracker), [sync]);
  const [filter, setFilter] = useState<Filter>("all");
  const [removed, setRemoved] = useState<readonly Todo[]>([]);
  const [settingsOpen, setSettingsOpen] = useState(false);

  const shown = todos?.filter((todo) => filter === "all" || todo.done === (filter === "done"));
  const done = todos?.filter((todo) => todo.done) ?? [];
  const open = (todos?.length ?? 0) - done.length;

  const remove = (gone: readonly Todo[]): void => {
    void list.remove(gone);
    setRemoved(gone);
  };

  return (
    <main className="page">
      <header className="top">
        <div>
          <h1>Todos</h1>
          <p className="summary">{summary(todos, open)}</p>
        </div>
        <StatusPill status={status} local={!settings.server} onRetry={() => void sync.syncOnce()} onSettings={() => setSettingsOpen(true)} />
      </header>

      <AddForm onAdd={(title) => void list.add(todos ?? [], title)} />

      {status.deadLetters > 0 && <DeadLetters db={db} count={status.deadLetters} />}

      {shown && (
        <List
          todos={shown}
          empty={emptyText(filter, todos?.length ?? 0)}
          onComplete={(id, value) => void list.complete(id, value)}
          onRename={(id, title) => void list.rename(id, title)}
          onRemove={(todo) => remove([todo])}
          onMove={(id, to) => void list.move(todos ?? [], id, place(todos ?? [], shown, id, to))}
          onDismiss={(id) => void db.dismissMerged(TABLE, id)}
        />
      )}

      <footer className="bottom">
        <div className="filters" role="group" aria-label="Show">
          {(Object.keys(FILTERS) as Filter[]).map((key) => (
            <button key={key} type="button" aria-pressed={filter === key} onClick={() => setFilter(key)}>
              {FILTERS[key]}
            </button>
          ))}
        </div>
        {done.length > 0 && (
          <button type="button" className="quiet" onClick={() => remove(done)}>
            Clear done
          </button>
        )}
      </footer>

      {removed.length > 0 && <Undo removed={removed} onUndo={() => void list.restore(removed)} onClose={() => setRemoved([])} />}
      <SettingsDialog open={settingsOpen} settings={settings} onClose={() => setSettingsOpen(false)} />
    </main>
  );
}

/** Goes by itself after a while, unless someone is about to use it: on a small screen it covers what is below. */
function Undo({ removed, onUndo, onClose }: { removed: readonly Todo[]; onUndo: () => void; onClose: () => void }) {
  const [held, setHeld] = useState(false);
  useEffect(() => {
    if (held) return;
    const timer = setTimeout(onClose, UNDO_MS);
    return () => clearTimeout(timer);
    // A later deletion starts the time anew; a new `onClose`, which every drawing brings, does not.
  }, [removed, held]);
  const hold = { onPointerEnter: () => setHeld(true), onPointerLeave: () => setHeld(false), onFocus: () => setHeld(true), onBlur: () => setHeld(false) };
  return (
    <div className="toast" role="status" {...hold}>
      <span>{removed.length === 1 ? `Deleted “${removed[0]!.title}”` : `Deleted ${removed.length} items`}</span>
      <button type="button" onClick={() => (onUndo(), onClose())}>
        Undo
      </button>
      <button type="button" className="icon" aria-label="Close" onClick={onClose}>
        ×
      </button>
    </div>
  );
}

function AddForm({ onAdd }: { onAdd: (title: string) => void }) {
  const [title, setTitle] = useState("");
  const submit = (event: FormEvent): void => {
    event.preventDefault();
    if (!title.trim()) return;
    onAdd(title.trim());
    setTitle("");
  };
  return (
    <form className="add" onSubmit={submit}>
      <label className="hidden" htmlFor="new-todo">
        New to-do
      </label>
      <input
        id="new-todo"
        value={title}
        onChange={(event) => setTitle(event.target.value)}
        placeholder="What needs doing?"
        autoComplete="off"
        maxLength={500}
        autoFocus
      />
      <button type="submit" disabled={!title.trim()}>
        Add
      </button>
    </form>
  );
}

/** Where a row goes in the whole list when it is moved within what is shown of it. */
function place(todos: readonly Todo[], shown: readonly Todo[], id: string, to: number): number {
  const target = shown.filter((todo) => todo.id !== id)[to];
  const others = todos.filter((todo) => todo.id !== id);
  return target ? others.indexOf(target) : others.length;
}

function summary(todos: readonly Todo[] | undefined, open: number): string {
  if (!todos) return "Opening…";
  if (todos.length === 0) return "A clear day";
  if (open === 0) return "Everything is done";
  return open === 1 ? "1 thing left" : `${open} things left`;
}

function emptyText(filter: Filter, total: number): string {
  if (total === 0) return "Nothing here yet. Write down the first thing on your mind.";
  return filter === "done" ? "Nothing is done yet." : "Nothing left to do.";
}
