/** Where to sync to. Saving opens the list of that server; the edits of this one stay with this one. */
import { useEffect, useRef, type FormEvent } from "react";
import { saveSettings, type Settings } from "./settings";

export function SettingsDialog({ open, settings, onClose }: { open: boolean; settings: Settings; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (open) dialog.current?.showModal();
    else dialog.current?.close();
  }, [open]);

  const submit = (event: FormEvent<HTMLFormElement>): void => {
    event.preventDefault();
    const form = new FormData(event.currentTarget);
    const text = (name: string): string => String(form.get(name) ?? "").trim();
    saveSettings({ server: text("server"), gateway: text("gateway") || "todos", token: text("token") });
  };

  return (
    <dialog ref={dialog} onClose={onClose} aria-labelledby="settings-title">
      <form onSubmit={submit}>
        <h2 id="settings-title">Sync</h2>
        <label>
          Server
          <input name="server" type="url" defaultValue={settings.server} placeholder="Empty: this device only" />
        </label>
        <label>
          Gateway
          <input name="gateway" defaultValue={settings.gateway} required pattern="[^\/]+" />
        </label>
        <label>
          Token
          <input name="token" type="password" defaultValue={settings.token} placeholder="If the server asks for one" autoComplete="off" />
        </label>
        <div className="buttons">
          <button type="button" className="quiet" onClick={onClose}>
            Cancel
          </button>
          <button type="submit">Save</button>
        </div>
      </form>
    </dialog>
  );
}
