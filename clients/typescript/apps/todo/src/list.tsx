/** The rows in their order. A row moves by its handle with the pointer, or with Alt and the arrow keys. */
import { useRef, useState, type PointerEvent } from "react";
import { Item } from "./item";
import type { Todo } from "./todos";

interface ListProps {
  readonly todos: readonly Todo[];
  readonly empty: string;
  readonly onComplete: (id: string, done: boolean) => void;
  readonly onRename: (id: string, title: string) => void;
  readonly onRemove: (todo: Todo) => void;
  readonly onMove: (id: string, to: number) => void;
  readonly onDismiss: (id: string) => void;
}

interface Drag {
  readonly id: string;
  readonly from: number;
  readonly to: number;
  readonly startY: number;
  readonly offset: number;
  /** Tops and heights of all rows when the drag began. */
  readonly boxes: readonly { top: number; height: number }[];
}

export function List({ todos, empty, onMove, ...actions }: ListProps) {
  const element = useRef<HTMLUListElement>(null);
  const [drag, setDrag] = useState<Drag>();
  const [spoken, setSpoken] = useState("");

  const move = (todo: Todo, from: number, to: number): void => {
    if (to < 0 || to >= todos.length || to === from) return;
    onMove(todo.id, to);
    setSpoken(`${todo.title} is now number ${to + 1} of ${todos.length}`);
  };

  const begin = (event: PointerEvent<HTMLElement>, id: string, from: number): void => {
    if (event.button !== 0 || !element.current) return;
    event.currentTarget.setPointerCapture(event.pointerId);
    const boxes = Array.from(element.current.children, (child) => {
      const { offsetTop: top, offsetHeight: height } = child as HTMLElement;
      return { top, height };
    });
    setDrag({ id, from, to: from, startY: event.clientY, offset: 0, boxes });
  };

  const follow = (event: PointerEvent<HTMLElement>): void => {
    if (!drag) return;
    const offset = event.clientY - drag.startY;
    const own = drag.boxes[drag.from]!;
    const middle = own.top + own.height / 2 + offset;
    const others = drag.boxes.filter((_, index) => index !== drag.from);
    const to = others.filter((box) => box.top + box.height / 2 < middle).length;
    setDrag({ ...drag, offset, to });
  };

  const end = (cancelled: boolean): void => {
    const todo = drag && todos.find(({ id }) => id === drag.id);
    setDrag(undefined);
    if (todo && !cancelled) move(todo, drag.from, drag.to);
  };

  if (todos.length === 0) return <p className="empty">{empty}</p>;
  return (
    <>
      <ul className={drag ? "list dragging" : "list"} ref={element} aria-label="To-dos">
        {todos.map((todo, index) => (
          <Item
            key={todo.id}
            todo={todo}
            shift={shiftOf(drag, todo.id, index)}
            lifted={drag?.id === todo.id}
            onStep={(step) => move(todo, index, index + step)}
            handle={{
              onPointerDown: (event) => begin(event, todo.id, index),
              onPointerMove: follow,
              onPointerUp: () => end(false),
              onPointerCancel: () => end(true),
            }}
            {...actions}
          />
        ))}
      </ul>
      <p className="hidden" aria-live="polite">
        {spoken}
      </p>
    </>
  );
}

/** How far a row stands from its place while another one is dragged past it. */
function shiftOf(drag: Drag | undefined, id: string, index: number): number {
  if (!drag) return 0;
  if (drag.id === id) return drag.offset;
  const height = drag.boxes[drag.from]!.height;
  if (index > drag.from && index <= drag.to) return -height;
  if (index < drag.from && index >= drag.to) return height;
  return 0;
}
