/** Typed events. A listener that throws does not keep the others from hearing. */
export class Emitter<Events extends object> {
  private readonly listeners = new Map<keyof Events, Set<(event: never) => void>>();

  /** Listen; the answer stops listening. */
  on<Name extends keyof Events>(name: Name, listener: (event: Events[Name]) => void): () => void {
    let set = this.listeners.get(name);
    if (!set) this.listeners.set(name, (set = new Set()));
    set.add(listener);
    return () => void set.delete(listener);
  }

  emit<Name extends keyof Events>(name: Name, event: Events[Name]): void {
    for (const listener of [...(this.listeners.get(name) ?? [])]) {
      try {
        (listener as (event: Events[Name]) => void)(event);
      } catch (error) {
        // The app's fault, to be seen in the app's console and not to stop a sync.
        queueMicrotask(() => {
          throw error;
        });
      }
    }
  }
}
