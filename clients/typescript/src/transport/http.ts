/** Sync over plain HTTP, in Protobuf by default. */
import { ClockDrift, CursorExpired, Denied, Invalid, Overloaded, Unreachable } from "../errors.js";
import { CheckpointReader } from "../wire/frames.js";
import {
  CONTENT_TYPE_JSON,
  CONTENT_TYPE_PROTOBUF,
  decodeResponse,
  encodePush,
  responseFromJson,
  toJson,
  type SyncPull,
  type SyncPush,
  type SyncResponse,
} from "../wire/messages.js";
import { FEATURES, tokenOf, type TokenSource, type Transport } from "./transport.js";

export interface HttpTransportOptions {
  /** The server, without the path: "https://sync.example.org". */
  readonly baseUrl: string;
  readonly gatewayId: string;
  readonly token?: TokenSource;
  /** JSON is for looking at in the browser's tools. */
  readonly encoding?: "protobuf" | "json";
  readonly timeoutMs?: number;
  readonly fetch?: typeof fetch;
}

const RETRY_AFTER_MS_DEFAULT = 1_000;

export class HttpTransport implements Transport {
  private readonly json: boolean;

  constructor(private readonly options: HttpTransportOptions) {
    this.json = options.encoding === "json";
  }

  async push(push: SyncPush, signal: AbortSignal): Promise<SyncResponse> {
    const body = this.json ? toJson(push) : (encodePush(push) as Uint8Array<ArrayBuffer>);
    const headers = { "Content-Type": this.contentType };
    return this.message(await this.request("push", { method: "POST", body, headers }, signal));
  }

  async pull(pull: SyncPull, signal: AbortSignal): Promise<SyncResponse> {
    const query = new URLSearchParams({
      since: String(pull.sinceHlc),
      clientId: pull.clientId,
      limit: String(pull.maxDeltas),
      features: FEATURES,
    });
    return this.message(await this.request(`pull?${query}`, {}, signal));
  }

  async checkpoint(clientId: string, signal: AbortSignal): Promise<AsyncIterable<SyncResponse> | undefined> {
    const query = new URLSearchParams({ clientId, features: FEATURES });
    const response = await this.request(`checkpoint?${query}`, { headers: { Accept: CONTENT_TYPE_PROTOBUF } }, signal, [404]);
    if (response.status === 404) return undefined;
    return pieces(response);
  }

  private get contentType(): string {
    return this.json ? CONTENT_TYPE_JSON : CONTENT_TYPE_PROTOBUF;
  }

  private async message(response: Response): Promise<SyncResponse> {
    const bytes = await unlessCutOff(response.arrayBuffer());
    const type = response.headers.get("Content-Type") ?? "";
    if (type.startsWith(CONTENT_TYPE_JSON)) return responseFromJson(new TextDecoder().decode(bytes));
    if (type.startsWith(CONTENT_TYPE_PROTOBUF)) return decodeResponse(new Uint8Array(bytes));
    throw new Unreachable(`the answer is not from a sync server. got=${type || "no content type"}`);
  }

  private async request(path: string, init: RequestInit, signal: AbortSignal, also: number[] = []): Promise<Response> {
    const { baseUrl, gatewayId, timeoutMs = 30_000 } = this.options;
    const token = await tokenOf(this.options.token);
    const headers = new Headers({ Accept: this.contentType, ...(init.headers as Record<string, string>) });
    if (token) headers.set("Authorization", `Bearer ${token}`);
    const url = `${baseUrl.replace(/\/+$/, "")}/sync/${encodeURIComponent(gatewayId)}/${path}`;
    // A checkpoint may take long as a whole; only its beginning has to come in time.
    const timeout = new AbortController();
    const timer = setTimeout(() => timeout.abort(), timeoutMs);
    const send = this.options.fetch ?? fetch;
    try {
      const either = AbortSignal.any([signal, timeout.signal]);
      const response = await unlessCutOff(send(url, { ...init, headers, signal: either }));
      if (response.ok || also.includes(response.status)) return response;
      throw await refusal(response);
    } finally {
      clearTimeout(timer);
    }
  }
}

async function* pieces(response: Response): AsyncGenerator<SyncResponse> {
  const reader = new CheckpointReader();
  const body = response.body?.getReader();
  if (!body) throw new Unreachable("a checkpoint has no body");
  try {
    for (;;) {
      const { done, value } = await unlessCutOff(body.read());
      if (done) break;
      yield* reader.feed(value);
    }
    reader.finish();
  } finally {
    await body.cancel().catch(() => undefined);
  }
}

interface ErrorBody {
  readonly error?: string;
  readonly reason?: string;
  readonly deltaId?: string;
  readonly serverHlc?: string;
}

/**
 * What a status means for us. Only an answer in the protocol's own words may put a delta aside: a proxy's or a captive
 * portal's 400 says nothing about our data.
 */
async function refusal(response: Response): Promise<Error> {
  const body = await errorBody(response);
  const message = `${response.status} ${body?.error ?? response.statusText}`;
  switch (response.status) {
    case 401:
    case 403:
      return new Denied(message);
    case 429:
    case 503:
      return new Overloaded(message, retryAfterMs(response.headers.get("Retry-After")));
  }
  if (!body?.reason) return new Unreachable(message);
  switch (response.status) {
    case 409:
      return new ClockDrift(message, body.serverHlc === undefined ? undefined : BigInt(body.serverHlc));
    case 410:
      return new CursorExpired(message);
    case 400:
    case 413:
    case 422:
      return new Invalid(message, body.reason, body.deltaId);
    default:
      return new Unreachable(message);
  }
}

async function errorBody(response: Response): Promise<ErrorBody | undefined> {
  try {
    const body = (await response.json()) as ErrorBody;
    return typeof body.reason === "string" ? body : undefined;
  } catch {
    return undefined;
  }
}

/** Seconds, or a date. */
export function retryAfterMs(header: string | null, nowMs = Date.now()): number {
  if (!header) return RETRY_AFTER_MS_DEFAULT;
  const seconds = Number(header);
  const ms = Number.isFinite(seconds) ? seconds * 1_000 : Date.parse(header) - nowMs;
  return Number.isFinite(ms) ? Math.max(0, ms) : RETRY_AFTER_MS_DEFAULT;
}

async function unlessCutOff<T>(promise: Promise<T>): Promise<T> {
  try {
    return await promise;
  } catch (error) {
    throw new Unreachable(`no answer. got=${error instanceof Error ? error.message : String(error)}`);
  }
}
