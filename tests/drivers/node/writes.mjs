// Writes: inserts, updates, deletes, bulk writes, files, unacknowledged and large documents.

import { createHash } from 'node:crypto';
import { Readable } from 'node:stream';
import { pipeline } from 'node:stream/promises';

import { BSON, GridFSBucket } from './driver.mjs';
import { resultFields, step } from './outcome.mjs';

const MIB = 1024 * 1024;

const digest = (bytes) => [bytes.length, createHash('sha256').update(bytes).digest('hex')];
const thing = (n) => ({ _id: n, text: `text ${n % 10}`, group: n % 7 });

export async function inserts(db) {
  const things = db.collection('things');
  await step('insert one', () => things.insertOne(thing(0)));
  const many = Array.from({ length: 299 }, (_, n) => thing(n + 1));
  await step('insert many', () => things.insertMany(many, {
    ordered: false, bypassDocumentValidation: true, writeConcern: { w: 'majority' },
  }));
  // A separate step, because servers before 4.4 refuse the comment.
  await step('insert comment', () => db.collection('commented').insertMany([{ _id: 1 }], { comment: 'matrix' }));
}

export async function updates(db) {
  const things = db.collection('things');
  const seen = { $set: { seen: true } };
  const run = (name, method, ...options) => step(`update ${name}`, () => things[method](...options));
  const of = (_id) => ({ _id });
  await run('one', 'updateOne', of(1), seen);
  await run('many', 'updateMany', { group: 2 }, seen);
  await run('upsert', 'updateOne', of('new'), { $set: { list: [1, 5, 9] } }, { upsert: true });
  const arrayFilters = [{ big: { $gt: 4 } }];
  await run('arrayFilters', 'updateOne', of('new'), { $inc: { 'list.$[big]': 1 } }, { arrayFilters });
  await run('pipeline', 'updateOne', of('new'), [{ $set: { sum: { $sum: '$list' } } }]);
  await step('update read', () => things.findOne(of('new')));
  await run('replace', 'replaceOne', of('new'), { replaced: 1 });
  await run('collation', 'updateMany', { text: 'TEXT 3' }, seen, { collation: { locale: 'en', strength: 2 } });
  await run('hint', 'updateOne', of(4), seen, { hint: { _id: 1 } });
}

export async function findAndModify(db) {
  const things = db.collection('things');
  const more = { $inc: { n: 1 } };
  const after = { returnDocument: 'after' };
  const whole = { includeResultMetadata: true };
  await step('modify before', () => things.findOneAndUpdate({ _id: 10 }, more));
  await step('modify after', () => things.findOneAndUpdate({ _id: 10 }, more, { ...after, ...whole }));
  await step('modify sorted', () => things.findOneAndUpdate(
    { group: 4 }, more, { ...after, sort: { _id: -1 }, projection: { n: 1 } }));
  await step('modify upsert', () => things.findOneAndUpdate(
    { _id: 'upserted' }, more, { ...after, ...whole, upsert: true }));
  await step('modify replace', () => things.findOneAndReplace({ _id: 'upserted' }, { replaced: 2 }));
  await step('modify delete', () => things.findOneAndDelete({ _id: 'upserted' }, whole));
  await step('modify nothing', () => things.findOneAndDelete({ _id: 'upserted' }));
}

export async function deletes(db) {
  const things = db.collection('things');
  await step('delete one', () => things.deleteOne({ _id: 20 }));
  await step('delete many', () => things.deleteMany({ group: 5 }));
  await step('delete hint', () => things.deleteOne({ _id: 21 }, { hint: { _id: 1 } }));
}

export async function bulks(db) {
  const things = db.collection('things');
  for (const [name, ordered] of [['ordered', true], ['unordered', false]]) {
    const of = (n) => ({ _id: `${name} ${n}` });
    const models = [
      { insertOne: { document: of(1) } }, { insertOne: { document: of(2) } },
      { updateOne: { filter: of(1), update: { $set: { x: 1 } } } },
      { updateMany: { filter: { group: 1 }, update: { $set: { bulk: name } } } },
      { updateOne: { filter: of(3), update: { $set: { x: 1 } }, upsert: true } },
      { replaceOne: { filter: of(2), replacement: { x: 2 } } },
      { deleteOne: { filter: of(1) } }, { deleteMany: { filter: { x: 2 } } },
    ];
    const failing = [
      { insertOne: { document: of(4) } }, { insertOne: { document: { _id: 1 } } },
      { updateOne: { filter: { _id: 2 }, update: { $nope: 1 } } }, { deleteOne: { filter: of(4) } },
    ];
    await step(`bulk ${name}`, async () => resultFields(await things.bulkWrite(models, { ordered })));
    await step(`bulk ${name} with an error`, async () => resultFields(await things.bulkWrite(failing, { ordered })));
  }
}

export async function gridfs(db) {
  const bucket = new GridFSBucket(db, { chunkSizeBytes: 100 * 1024 });
  const content = Buffer.from(Array.from({ length: 350 * 1024 }, (_, n) => n % 251));
  const download = async (options) => Buffer.concat(await bucket.openDownloadStream('file', options).toArray());
  await step('gridfs upload', () => pipeline(
    Readable.from([content]), bucket.openUploadStreamWithId('file', 'name', { metadata: { a: 1 } })));
  await step('gridfs download', async () => digest(await download()));
  await step('gridfs range', async () => digest(await download({ start: 150_000, end: 250_000 })));
  await step('gridfs list', () => bucket.find().toArray());
  await step('gridfs delete', () => bucket.delete('file'));
  await step('gridfs deleted', () => download());
  await step('gridfs chunks', () => db.collection('fs.chunks').countDocuments());
}

export async function unacknowledged(db) {
  await step('unacknowledged', async () => {
    const things = db.collection('unacknowledged');
    // The writes run one by one on one connection of the driver's pool, so their order is kept.
    for (let n = 0; n < 50; n += 1) await things.insertOne({ _id: n }, { writeConcern: { w: 0 } });
    return things.countDocuments();
  });
}

// Compresses commands and replies of several hundred KiB: each document has about 7 KiB.
export async function largeBatches(db) {
  const padded = db.collection('padded');
  const text = (n) => Array.from({ length: 1200 }, (_, word) => n * word).join(' ');
  const documents = Array.from({ length: 250 }, (_, _id) => ({ _id, text: text(_id) }));
  const countAndDigest = async (cursor) => {
    const texts = (await cursor.toArray()).map((found) => found.text);
    return [texts.length, digest(Buffer.from(texts.join('')))];
  };
  await step('large batches written', async () => (await padded.insertMany(documents)).insertedCount);
  await step('large batches found', () => countAndDigest(padded.find({}, { sort: { _id: 1 } })));
  await step('large batches of 50', () => countAndDigest(padded.find({}, { sort: { _id: -1 }, batchSize: 50 })));
  await step('large batches aggregated', () => countAndDigest(padded.aggregate([{ $sort: { _id: 1 } }], { batchSize: 90 })));
}

export async function large(db) {
  const all = db.collection('large');
  const sized = (_id, length) => {
    const empty = BSON.calculateObjectSize({ _id, bytes: Buffer.alloc(0) });
    return { _id, bytes: Buffer.alloc(length - empty, 'all the same text') };
  };
  await step('large', async () => {
    await all.insertOne(sized('large', 16 * MIB - 64));
    return digest((await all.findOne({ _id: 'large' })).bytes.value());
  });
  await step('too large', () => all.insertOne(sized('too large', 16 * MIB + 1024)));
}
