// The steps of an application with the Node driver; see ../scenarios.md.
//
// The program skips `unacknowledged` in an explicit session, because the driver refuses such a
// write and sends nothing. With old versions, the program skips more steps: see driver.mjs.

import { administration } from './administration.mjs';
import { MongoClient, STABLE_API } from './driver.mjs';
import { errors } from './failures.mjs';
import { refused, step } from './outcome.mjs';
import { aggregate, concernsAndPreferences, counts, cursors, findOptions, types } from './reads.mjs';
import { causalAndSnapshot, changeStream, transactions } from './sessions.mjs';
import { bulks, deletes, findAndModify, gridfs, inserts, large, largeBatches, unacknowledged, updates } from './writes.mjs';

async function status(client) {
  const admin = client.db('admin');
  await step('status ping', () => admin.command({ ping: 1 }));
  await step('status users', async () => (await admin.command({ connectionStatus: 1 })).authInfo);
  await step('status version', async () => (await admin.command({ buildInfo: 1 })).version);
}

const [uri, name, api] = process.argv.slice(2);
const options = api === 'stable' ? STABLE_API : {};
const connect = () => new MongoClient(uri, options);
const client = await connect().connect().catch(refused);
try {
  const db = client.db(name);
  // In old versions a database has no client property.
  db.client ??= client;
  await status(client);
  await inserts(db);
  await types(db);
  await findOptions(db);
  await concernsAndPreferences(db);
  await counts(db);
  await updates(db);
  await findAndModify(db);
  await deletes(db);
  await bulks(db);
  await aggregate(db, api);
  await cursors(db);
  await causalAndSnapshot(db);
  await transactions(db);
  await changeStream(db);
  await gridfs(db);
  await unacknowledged(db);
  await largeBatches(db);
  await large(db);
  await errors(db, connect);
  await administration(db, api);
  await step('drop', () => db.dropDatabase());
} finally {
  await client.close();
}
