/*
 * Starts the modules of a report, which is a single file. Browsers do not load modules from file:
 * URLs. So each module becomes a blob: URL, and its imports are replaced by the URLs of earlier
 * modules.
 *
 * The security policy of a report allows only this script, by its hash, and blob: URLs. Only a
 * running script can make a blob: URL. So markup in a text of a client could not start a script,
 * even if it became part of the page.
 */
const modules = /** @type {[string, string][]} */ (
  JSON.parse(document.getElementById("modules")?.textContent ?? "[]")
);
/** @type {Record<string, string>} */
const urls = {};
for (const [name, source] of modules) {
  const linked = source.replace(/ from "\.\/([^"]+)"/g, (_, of) => ` from "${urls[of]}"`);
  urls[name] = URL.createObjectURL(new Blob([linked], { type: "text/javascript" }));
}
import(urls["report.js"]);
