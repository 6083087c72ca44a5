/** How the sync is doing, in two or three words; a click opens the settings or tries again. */
import type { SyncStatus } from "@mainstem/client";

interface StatusProps {
  readonly status: SyncStatus;
  readonly local: boolean;
  readonly onRetry: () => void;
  readonly onSettings: () => void;
}

export function StatusPill({ status, local, onRetry, onSettings }: StatusProps) {
  const { tone, text, detail } = describe(status, local);
  const offline = tone === "away" || tone === "alarm";
  return (
    <div className="status">
      <span className={`pill ${tone}`} role="status" title={detail}>
        <i aria-hidden="true" />
        {text}
      </span>
      {offline && !local && (
        <button type="button" className="quiet" onClick={onRetry}>
          Retry
        </button>
      )}
      <button type="button" className="icon" aria-label="Sync settings" onClick={onSettings}>
        <svg viewBox="0 0 20 20" aria-hidden="true">
          <path d="M3 6h7m4 0h3M3 14h3m4 0h7" />
          <circle cx="12" cy="6" r="2" />
          <circle cx="8" cy="14" r="2" />
        </svg>
      </button>
    </div>
  );
}

interface Description {
  readonly tone: "calm" | "busy" | "away" | "alarm";
  readonly text: string;
  readonly detail: string;
}

function describe(status: SyncStatus, local: boolean): Description {
  const waiting = status.pending === 0 ? "" : ` · ${status.pending} waiting`;
  if (local) return { tone: "calm", text: "On this device", detail: "No server is set. Your list is kept in this browser." };
  if (status.error?.name === "Denied") return { tone: "alarm", text: `Not allowed in${waiting}`, detail: status.error.message };
  if (status.phase === "retrying") {
    return { tone: "away", text: `Offline${waiting}`, detail: `Your edits are safe here. ${status.error?.message ?? ""}` };
  }
  if (status.pending > 0) return { tone: "busy", text: `Syncing${waiting}`, detail: "Sending your edits" };
  if (status.phase === "idle" || status.online) return { tone: "calm", text: "In sync", detail: "Everything here is on the server too." };
  return { tone: "busy", text: "Connecting", detail: "Looking for the server" };
}
