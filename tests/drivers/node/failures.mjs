// Steps in which an error is expected.

import { Long, withSession } from './driver.mjs';
import { step } from './outcome.mjs';

// `unused` creates another client, which has new sessions.
export async function errors(db, unused) {
  const things = db.collection('things');
  const added = { input: { $range: [0, 20000] }, initialValue: 0, in: { $add: ['$$value', '$$this'] } };
  const slow = { $expr: { $gte: [{ $reduce: added }, 0] } };
  const failing = (name, action) => step(`error ${name}`, action);
  const created = (options) => db.createCollection('validated', options).then((made) => made.collectionName);
  await failing('duplicate key', () => things.insertOne({ _id: 1 }));
  await failing('unknown operator', () => things.findOne({ $nope: 1 }));
  await failing('unknown command', () => db.command({ noSuchCommand: 1 }));
  await failing('not authorised', () => db.client.db('elsewhere').collection('things').insertOne({ _id: 1 }));
  await failing('maxTimeMS', () => things.find(slow, { maxTimeMS: 50 }).toArray());
  await failing('create validated', () => created({ validator: { n: { $type: 'int' } } }));
  await failing('document validation', () => db.collection('validated').insertOne({ _id: 1, n: 'text' }));
  await failing('cursor not found', () => db.command({ getMore: Long.fromNumber(123456789), collection: 'things' }));
  await failing('collection exists', () => created({ validator: { n: { $type: 'string' } } }));
  await failing('index', () => things.createIndex({ group: 1 }, { name: 'conflict' }));
  await failing('index conflict', () => things.createIndex({ text: 1 }, { name: 'conflict' }));
  await failing('write concern', () => things.insertOne({ _id: 'unmet' }, { writeConcern: { w: 50, wtimeoutMS: 100 } }));
  await failing('invalid namespace', () => db.command({ find: '' }));
  await failing('immutable field', () => things.updateOne({ _id: 1 }, { $set: { _id: 2 } }));
  await failing('cursor of a wrong type', () => db.command({ getMore: 'text', collection: 'things' }));
  // The driver numbers transactions itself, so the session must never have been used.
  const fresh = await unused().connect();
  try {
    await failing('transaction never begun', () => withSession(fresh, {}, (session) => fresh.db('admin').command(
      { commitTransaction: 1, autocommit: false }, { session })));
  } finally {
    await fresh.close();
  }
}
