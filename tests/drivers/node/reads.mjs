// Reads: types, options, concerns, preferences, aggregation and cursors.

import {
  BSONRegExp, BSONSymbol, Binary, Code, DBRef, Decimal128, Double, Int32, Long, MaxKey, MinKey, ObjectId, timestamp, uuid,
  withSession,
} from './driver.mjs';
import { step } from './outcome.mjs';

export async function types(db) {
  const document = {
    _id: 'types', double: new Double(1.5), infinite: new Double(-Infinity), string: 'naïve Ω 🌊', embedded: { a: {} },
    array: [null, true, [1]], binary: new Binary(Buffer.from([0, 255]), 128), generic: Buffer.from('bytes'),
    uuid: uuid('00010203-0405-0607-0809-0a0b0c0d0e0f'), id: new ObjectId('0123456789abcdef01234567'), boolean: false,
    date: new Date(1577934245678), null: null, regex: new BSONRegExp('^a.*', 'im'),
    reference: new DBRef('things', new ObjectId('0123456789abcdef01234567')), code: new Code('function() {}'),
    scoped: new Code('x', { x: 1 }), symbol: new BSONSymbol('symbol'), int: new Int32(42),
    timestamp: timestamp(5, 6), long: Long.fromString('9007199254740993'),
    decimal: Decimal128.fromString('-1.10E-300'), min: new MinKey(), max: new MaxKey(),
  };
  await step('types', async () => {
    await db.collection('types').insertOne(document);
    return db.collection('types').findOne({ _id: 'types' }, { promoteValues: false, bsonRegExp: true });
  });
}

export async function findOptions(db) {
  const things = db.collection('things');
  const find = (name, filter, options) => step(
    `find ${name}`, () => things.find(filter, { projection: { text: 0 }, ...options }).toArray());
  const few = { _id: { $lt: 3 } };
  await find('projection', few, { projection: { _id: 0, group: 1 } });
  await find('sort', {}, { sort: { group: -1, _id: 1 }, skip: 2, limit: 5 });
  await find('collation', { text: 'TEXT 5' }, { collation: { locale: 'en', strength: 2 } });
  await find('hint', { _id: { $gt: 295 } }, { hint: { _id: 1 } });
  await find('min and max', {}, { min: { _id: 3 }, max: { _id: 6 }, hint: { _id: 1 } });
  await find('returnKey', few, { returnKey: true, hint: { _id: 1 } });
  await find('showRecordId', few, { showRecordId: true });
  await find('let', { $expr: { $eq: ['$_id', '$$wanted'] } }, { let: { wanted: 7 } });
  await find('allowDiskUse', {}, { sort: { text: 1 }, limit: 2, allowDiskUse: true });
  await find('comment', { _id: 1 }, { comment: { why: 'matrix' } });
  await find('maxTimeMS', { _id: 1 }, { maxTimeMS: 10_000 });
  await find('singleBatch', {}, { limit: -3, sort: { _id: 1 } });
  await find('batches', { group: 3 }, { batchSize: 5, sort: { _id: 1 } });
}

export async function concernsAndPreferences(db) {
  for (const level of ['local', 'majority', 'available']) {
    const things = db.collection('things', { readConcern: { level } });
    await step(`read concern ${level}`, () => things.findOne({ _id: 1 }));
  }
  const things = db.collection('things');
  for (const readPreference of ['primary', 'primaryPreferred', 'secondary', 'secondaryPreferred', 'nearest']) {
    await step(`read preference ${readPreference}`, () => withSession(
      db.client, { causalConsistency: true }, async (session) => {
        await things.updateOne({ _id: 2 }, { $set: { 'read by': readPreference } }, { session });
        return things.findOne({ _id: 2 }, { session, readPreference });
      }));
  }
}

export async function counts(db) {
  const things = db.collection('things');
  await step('count with filter', () => things.countDocuments({ group: 1 }));
  await step('estimated count', () => things.estimatedDocumentCount());
  await step('distinct', () => things.distinct('group'));
}

export async function aggregate(db, api) {
  const things = db.collection('things');
  const grouped = [{ $group: { _id: '$group', n: { $sum: 1 } } }, { $sort: { _id: 1 } }];
  const run = (name, pipeline, options) => step(
    `aggregate ${name}`, () => things.aggregate(pipeline, options).toArray());
  await run('grouped', grouped, { batchSize: 2 });
  await run('lookup', [
    { $match: { _id: { $lt: 2 } } }, { $project: { text: 0 } },
    { $lookup: { from: 'types', localField: 'group', foreignField: 'int', as: 'found' } },
  ]);
  await run('facet', [{ $facet: { groups: grouped, count: [{ $count: 'n' }] } }]);
  await run('out', [...grouped, { $out: 'groups' }]);
  await run('merge', [
    { $match: { group: { $ne: null } } }, ...grouped, { $set: { n: 0 } }, { $merge: { into: 'groups', on: '_id' } },
  ]);
  await step('aggregate written', () => db.collection('groups').find({}, { sort: { _id: 1 } }).toArray());
  if (api === 'plain') {
    await step('aggregate explain', async () => Object.keys(await things.aggregate(grouped).explain()).sort());
  }
}

export async function cursors(db) {
  await step('cursor closed before its end', async () => {
    const cursor = db.collection('things').find({}, { projection: { _id: 1 }, batchSize: 2, sort: { _id: 1 } });
    const seen = [await cursor.next(), await cursor.next(), await cursor.next()];
    await cursor.close();
    return [seen, cursor.closed ?? cursor.isClosed()];
  });
  await step('cursor create capped', async () =>
    (await db.createCollection('capped', { capped: true, size: 65536 })).collectionName);
  await step('cursor tailable', async () => {
    const capped = db.collection('capped');
    await capped.insertMany([0, 1, 2].map((_id) => ({ _id })));
    const cursor = capped.find({}, { tailable: true, awaitData: true, maxAwaitTimeMS: 5000 });
    try {
      const seen = [await cursor.next(), await cursor.next(), await cursor.next()];
      await capped.insertOne({ _id: 3 });
      return [...seen, await cursor.next()];
    } finally {
      await cursor.close();
    }
  });
}
