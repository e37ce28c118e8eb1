// Runs a script in mongosh, like a user with a connection string: program.js, or the script that
// MATRIX_SCRIPT names.

import { spawnSync } from 'node:child_process';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

const folder = import.meta.dirname;
const [uri, database, api] = process.argv.slice(2);

// A separate home directory, for the log and for the configuration that switches off telemetry.
const home = join(folder, 'home');
mkdirSync(join(home, '.mongodb', 'mongosh'), { recursive: true });
writeFileSync(join(home, '.mongodb', 'mongosh', 'config'), '{"enableTelemetry": false, "disableLogging": true}');

const stable = api === 'stable' ? ['--apiVersion', '1', '--apiStrict'] : [];
// If the server is on the same machine, mongosh waits only 2 seconds for it, which is too short on
// a busy machine. 30 seconds is the default of drivers. mongosh refuses a URI that has this option
// twice.
const patient = uri.includes('serverSelectionTimeoutMS') ? uri : `${uri}&serverSelectionTimeoutMS=30000`;
const shell = [join(folder, 'node_modules', 'mongosh', 'bin', 'mongosh.js'), patient, ...stable];
const script = ['--quiet', '--norc', '--file', join(folder, process.env.MATRIX_SCRIPT ?? 'program.js')];
const environment = { ...process.env, HOME: home, MATRIX_DATABASE: database, MATRIX_API: api };
const { error, status } = spawnSync(process.execPath, [...shell, ...script], { env: environment, stdio: 'inherit' });
if (error) throw error;
process.exit(status ?? 1);
