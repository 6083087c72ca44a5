/**
 * WebSocket frames and checkpoint bodies.
 *
 * A request is a tag byte and a message. A reply is the bare SyncResponse, in the order of the requests; its first byte
 * is a field's tag (0x0a, 0x11, 0x18 or 0x21) or it is empty, so it cannot be taken for a broadcast.
 */
import { Invalid } from "../errors.js";
import { decodePull, decodePush, decodeResponse, encodePull, encodePush, encodeResponse } from "./messages.js";
import type { SyncPull, SyncPush, SyncResponse } from "./messages.js";

export const TAG_PUSH = 0x01;
export const TAG_PULL = 0x02;
export const TAG_BROADCAST = 0x03;

export const CLOSE_PROTOCOL = 1002;
export const CLOSE_TEXT = 1003;
export const CLOSE_REFUSED = 1008;
export const CLOSE_TOO_LARGE = 1009;
export const CLOSE_INTERNAL = 1011;
export const CLOSE_OVERLOADED = 1013;

export type Request = { readonly push: SyncPush } | { readonly pull: SyncPull };

export const pushFrame = (push: SyncPush): Uint8Array => tagged(TAG_PUSH, encodePush(push));
export const pullFrame = (pull: SyncPull): Uint8Array => tagged(TAG_PULL, encodePull(pull));
export const broadcastFrame = (response: SyncResponse): Uint8Array => tagged(TAG_BROADCAST, encodeResponse(response));

/** What a client sent. An unknown tag has the reason `unknown_tag`, which a server answers with 1002. */
export function decodeRequest(frame: Uint8Array): Request {
  if (frame.length < 2) throw new Invalid(`a frame is too short. got=${frame.length} bytes`, "unknown_tag");
  const body = frame.subarray(1);
  if (frame[0] === TAG_PUSH) return { push: decodePush(body) };
  if (frame[0] === TAG_PULL) return { pull: decodePull(body) };
  throw new Invalid(`a frame has an unknown tag. got=${frame[0]}`, "unknown_tag");
}

/** What a server sent: a reply or a broadcast. */
export function decodeFromServer(frame: Uint8Array): { readonly broadcast: boolean; readonly response: SyncResponse } {
  const broadcast = frame[0] === TAG_BROADCAST;
  return { broadcast, response: decodeResponse(broadcast ? frame.subarray(1) : frame) };
}

/** One piece of a checkpoint: its length as a varint, then the message. */
export function checkpointPiece(response: SyncResponse): Uint8Array {
  const body = encodeResponse(response);
  const head: number[] = [];
  for (let rest = body.length; ; rest >>>= 7) {
    head.push(rest > 0x7f ? (rest & 0x7f) | 0x80 : rest);
    if (rest <= 0x7f) break;
  }
  const piece = new Uint8Array(head.length + body.length);
  piece.set(head);
  piece.set(body, head.length);
  return piece;
}

export const PIECE_BYTES_MAX = 16 * 1024 * 1024;

/** Cuts a checkpoint's bytes, as they come, into its pieces. `finish` refuses a body that ends too early. */
export class CheckpointReader {
  private rest = new Uint8Array(0);
  private complete = false;

  *feed(bytes: Uint8Array): Generator<SyncResponse> {
    this.rest = concat(this.rest, bytes);
    for (;;) {
      const head = pieceHead(this.rest);
      if (!head || this.rest.length < head.start + head.length) return;
      const response = decodeResponse(this.rest.subarray(head.start, head.start + head.length));
      this.rest = this.rest.slice(head.start + head.length);
      this.complete = !response.hasMore;
      yield response;
    }
  }

  finish(): void {
    if (!this.complete || this.rest.length > 0) throw new Invalid("a checkpoint is cut off", "checkpoint_cut_off");
  }
}

function pieceHead(bytes: Uint8Array): { start: number; length: number } | undefined {
  let length = 0;
  for (let index = 0; index < bytes.length; index++) {
    length += (bytes[index]! & 0x7f) * 2 ** (7 * index);
    if (index > 4 || length > PIECE_BYTES_MAX) {
      throw new Invalid(`a checkpoint's piece is too large. expected=at most ${PIECE_BYTES_MAX} bytes`, "checkpoint_corrupt");
    }
    if (bytes[index]! < 0x80) return { start: index + 1, length };
  }
  return undefined;
}

function concat(left: Uint8Array, right: Uint8Array): Uint8Array<ArrayBuffer> {
  const both = new Uint8Array(left.length + right.length);
  both.set(left);
  both.set(right, left.length);
  return both;
}

function tagged(tag: number, body: Uint8Array): Uint8Array {
  const frame = new Uint8Array(body.length + 1);
  frame[0] = tag;
  frame.set(body, 1);
  return frame;
}
