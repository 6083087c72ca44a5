/**
 * The errors of the client, by what the caller does next.
 *
 *     MainstemError
 *     ├── Invalid        mend the request; the same one cannot succeed
 *     ├── ClockDrift     our clock runs ahead of the server's: stamp again, then send
 *     ├── Denied         get other rights (a new token); the same request may succeed with them
 *     ├── Overloaded     the same request may succeed after `retryAfterMs`
 *     ├── CursorExpired  the server no longer has what follows our cursor: begin with a checkpoint
 *     └── Unreachable    no answer: it may or may not have happened, and sending it again is safe
 */
export class MainstemError extends Error {
  // Spelled out in each class: a minifier renames classes, and people read these names.
  override name = "MainstemError";
}

/** The request is wrong. `reason` is a short stable word that a program can act on. */
export class Invalid extends MainstemError {
  override name = "Invalid";

  constructor(
    message: string,
    readonly reason: string = "invalid_format",
    /** The delta at fault, where the server named one. */
    readonly deltaId?: string,
  ) {
    super(message);
  }
}

export class ClockDrift extends MainstemError {
  override name = "ClockDrift";

  constructor(
    message: string,
    /** The server's clock when it refused; undefined where it did not say. */
    readonly serverHlc?: bigint,
  ) {
    super(message);
  }
}

export class Denied extends MainstemError {
  override name = "Denied";
}

export class Overloaded extends MainstemError {
  override name = "Overloaded";

  constructor(
    message: string,
    readonly retryAfterMs: number,
  ) {
    super(message);
  }
}

export class CursorExpired extends MainstemError {
  override name = "CursorExpired";
}

export class Unreachable extends MainstemError {
  override name = "Unreachable";
}
