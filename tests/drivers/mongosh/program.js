// The steps of a user of mongosh; see ../scenarios.md. mongosh awaits the results of calls
// automatically.
//
// The program skips `gridfs`, because the shell has no call for it. It also skips `unacknowledged`
// in an explicit session, because the driver refuses such a write and sends nothing.

const api = process.env.MATRIX_API;
const mongo = db.getMongo();
const mine = db.getSiblingDB(process.env.MATRIX_DATABASE);
const things = mine.things;

// Runs a step and prints its outcome. An error that does not come from the driver's API ends the
// shell.
function step(name, action) {
  let outcome;
  try {
    const value = action();
    outcome = { value: value === undefined ? null : value };
  } catch (error) {
    if (!error.name.startsWith('Mongo') || error.name === 'MongoshInternalError') throw error;
    outcome = { error: errorFields(error) };
  }
  print(EJSON.stringify({ step: name, ...outcome }, { relaxed: false }));
}

function errorFields(error) {
  return {
    type: error.name,
    code: error.code ?? null,
    codeName: error.codeName ?? null,
    labels: [...(error.errorLabels ?? [])].sort(),
    message: error.message,
    reply: error.errorResponse ?? null,
    writeErrors: [...(error.writeErrors ?? [])].map((each) => each.err ?? each),
    result: error.result ?? null,
  };
}

function digest(bytes) {
  return [bytes.length, require('crypto').createHash('sha256').update(bytes).digest('hex')];
}

function statusAndInserts() {
  const thing = (n) => ({ _id: n, text: `text ${n % 10}`, group: n % 7 });
  const many = Array.from({ length: 299 }, (_, n) => thing(n + 1));
  step('status ping', () => mine.runCommand({ ping: 1 }));
  step('status users', () => mine.runCommand({ connectionStatus: 1 }).authInfo);
  step('status version', () => mine.runCommand({ buildInfo: 1 }).version);
  step('insert one', () => things.insertOne(thing(0)));
  step('insert many', () => things.insertMany(many, {
    ordered: false, bypassDocumentValidation: true, writeConcern: { w: 'majority' },
  }));
  step('insert comment', () => mine.commented.insertMany([{ _id: 1 }], { comment: 'matrix' }));
}

function types() {
  const document = {
    _id: 'types', double: Double(1.5), infinite: Double(-Infinity), string: 'naïve Ω 🌊', embedded: { a: {} },
    array: [null, true, [1]], binary: BinData(128, 'AP8='), uuid: UUID('00010203-0405-0607-0809-0a0b0c0d0e0f'),
    id: ObjectId('0123456789abcdef01234567'), boolean: false, date: ISODate('2020-01-02T03:04:05.678Z'), null: null,
    regex: /^a.*/im, reference: DBRef('things', 1), code: Code('function() {}'), scoped: Code('x', { x: 1 }),
    int: Int32(42), timestamp: Timestamp({ t: 5, i: 6 }), long: Long('9007199254740993'),
    decimal: Decimal128('-1.10E-300'), min: MinKey(), max: MaxKey(),
  };
  step('types', () => {
    mine.types.insertOne(document);
    return mine.types.findOne({ _id: 'types' });
  });
}

function findOptions() {
  const find = (name, filter, options) => step(
    `find ${name}`, () => things.find(filter, undefined, { projection: { text: 0 }, ...options }).toArray());
  const few = { _id: { $lt: 3 } };
  find('projection', few, { projection: { _id: 0, group: 1 } });
  find('sort', {}, { sort: { group: -1, _id: 1 }, skip: 2, limit: 5 });
  find('collation', { text: 'TEXT 5' }, { collation: { locale: 'en', strength: 2 } });
  find('hint', { _id: { $gt: 295 } }, { hint: { _id: 1 } });
  find('min and max', {}, { min: { _id: 3 }, max: { _id: 6 }, hint: { _id: 1 } });
  find('returnKey', few, { returnKey: true, hint: { _id: 1 } });
  find('showRecordId', few, { showRecordId: true });
  find('let', { $expr: { $eq: ['$_id', '$$wanted'] } }, { let: { wanted: 7 } });
  find('allowDiskUse', {}, { sort: { text: 1 }, limit: 2, allowDiskUse: true });
  find('comment', { _id: 1 }, { comment: { why: 'matrix' } });
  find('maxTimeMS', { _id: 1 }, { maxTimeMS: 10000 });
  find('singleBatch', {}, { limit: -3, sort: { _id: 1 } });
  find('batches', { group: 3 }, { batchSize: 5, sort: { _id: 1 } });
}

function concernsAndPreferences() {
  for (const level of ['local', 'majority', 'available']) {
    step(`read concern ${level}`, () => things.find({ _id: 1 }).readConcern(level).toArray());
  }
  for (const mode of ['primary', 'primaryPreferred', 'secondary', 'secondaryPreferred', 'nearest']) {
    step(`read preference ${mode}`, () => {
      const session = mongo.startSession({ causalConsistency: true });
      const inside = session.getDatabase(mine.getName()).things;
      inside.updateOne({ _id: 2 }, { $set: { 'read by': mode } });
      const found = inside.find({ _id: 2 }).readPref(mode).toArray();
      session.endSession();
      return found;
    });
  }
}

function counts() {
  step('count with filter', () => things.countDocuments({ group: 1 }));
  step('estimated count', () => things.estimatedDocumentCount());
  step('distinct', () => things.distinct('group'));
}

function updates() {
  const seen = { $set: { seen: true } };
  const fresh = { _id: 'new' };
  const arrayFilters = [{ big: { $gt: 4 } }];
  const collation = { locale: 'en', strength: 2 };
  step('update one', () => things.updateOne({ _id: 1 }, seen));
  step('update many', () => things.updateMany({ group: 2 }, seen));
  step('update upsert', () => things.updateOne(fresh, { $set: { list: [1, 5, 9] } }, { upsert: true }));
  step('update arrayFilters', () => things.updateOne(fresh, { $inc: { 'list.$[big]': 1 } }, { arrayFilters }));
  step('update pipeline', () => things.updateOne(fresh, [{ $set: { sum: { $sum: '$list' } } }]));
  step('update read', () => things.findOne(fresh));
  step('update replace', () => things.replaceOne(fresh, { replaced: 1 }));
  step('update collation', () => things.updateMany({ text: 'TEXT 3' }, seen, { collation }));
  step('update hint', () => things.updateOne({ _id: 4 }, seen, { hint: { _id: 1 } }));
}

function findAndModify() {
  const more = { $inc: { n: 1 } };
  const upserted = { _id: 'upserted' };
  const after = { returnDocument: 'after' };
  step('modify before', () => things.findOneAndUpdate({ _id: 10 }, more));
  step('modify after', () => things.findOneAndUpdate({ _id: 10 }, more, after));
  step('modify sorted', () => things.findOneAndUpdate(
    { group: 4 }, more, { ...after, sort: { _id: -1 }, projection: { n: 1 } }));
  step('modify upsert', () => things.findAndModify({ query: upserted, update: more, new: true, upsert: true }));
  step('modify replace', () => things.findOneAndReplace(upserted, { replaced: 2 }));
  step('modify delete', () => things.findOneAndDelete(upserted));
  step('modify nothing', () => things.findOneAndDelete(upserted));
}

function deletesAndBulks() {
  step('delete one', () => things.deleteOne({ _id: 20 }));
  step('delete many', () => things.deleteMany({ group: 5 }));
  step('delete hint', () => things.deleteOne({ _id: 21 }, { hint: { _id: 1 } }));
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
    step(`bulk ${name}`, () => things.bulkWrite(models, { ordered }));
    step(`bulk ${name} with an error`, () => things.bulkWrite(failing, { ordered }));
  }
}

function aggregate() {
  const grouped = [{ $group: { _id: '$group', n: { $sum: 1 } } }, { $sort: { _id: 1 } }];
  const run = (name, pipeline) => step(
    `aggregate ${name}`, () => things.aggregate(pipeline, { batchSize: 2 }).toArray());
  run('grouped', grouped);
  run('lookup', [
    { $match: { _id: { $lt: 2 } } }, { $project: { text: 0 } },
    { $lookup: { from: 'types', localField: 'group', foreignField: 'int', as: 'found' } },
  ]);
  run('facet', [{ $facet: { groups: grouped, count: [{ $count: 'n' }] } }]);
  run('out', [...grouped, { $out: 'groups' }]);
  run('merge', [
    { $match: { group: { $ne: null } } }, ...grouped, { $set: { n: 0 } }, { $merge: { into: 'groups', on: '_id' } },
  ]);
  step('aggregate written', () => mine.groups.find().sort({ _id: 1 }).toArray());
  if (api === 'plain') step('aggregate explain', () => Object.keys(things.explain().aggregate(grouped)).sort());
}

function cursors() {
  step('cursor closed before its end', () => {
    const cursor = things.find({}, { _id: 1 }, { batchSize: 2, sort: { _id: 1 } });
    const seen = [cursor.next(), cursor.next(), cursor.next()];
    cursor.close();
    return [seen, cursor.isClosed()];
  });
  step('cursor create capped', () => mine.createCollection('capped', { capped: true, size: 65536 }));
  step('cursor tailable', () => {
    mine.capped.insertMany([0, 1, 2].map((_id) => ({ _id })));
    const cursor = mine.capped.find({}, undefined, { tailable: true, awaitData: true, maxAwaitTimeMS: 5000 });
    const seen = [cursor.next(), cursor.next(), cursor.next()];
    mine.capped.insertOne({ _id: 3 });
    seen.push(cursor.next());
    cursor.close();
    return seen;
  });
}

function sessions() {
  step('session causal', () => {
    const session = mongo.startSession({ causalConsistency: true });
    const inside = session.getDatabase(mine.getName()).things;
    inside.insertOne({ _id: 'causal' });
    const found = inside.find({ _id: 'causal' }).readConcern('majority').toArray();
    const hasTime = session.getOperationTime() !== undefined;
    session.endSession();
    return [found, hasTime];
  });
  step('session snapshot', () => {
    const session = mongo.startSession({ snapshot: true });
    const inside = session.getDatabase(mine.getName()).things;
    const before = inside.findOne({ _id: 3 });
    things.updateOne({ _id: 3 }, { $set: { snapshot: 'changed' } });
    const seen = [before, inside.findOne({ _id: 3 }), things.findOne({ _id: 3 })];
    session.endSession();
    return seen;
  });
}

function transactions() {
  const first = mongo.startSession();
  const second = mongo.startSession();
  const [firstThings, secondThings] = [first, second].map((session) => session.getDatabase(mine.getName()).things);
  step('transaction commit', () => {
    first.startTransaction();
    firstThings.insertOne({ _id: 't1' });
    firstThings.updateOne({ _id: 't1' }, { $set: { x: 2 } });
    first.commitTransaction();
    return firstThings.findOne({ _id: 't1' });
  });
  step('transaction abort', () => {
    first.startTransaction();
    firstThings.insertOne({ _id: 't2' });
    const inside = firstThings.findOne({ _id: 't2' });
    first.abortTransaction();
    return [inside, things.findOne({ _id: 't2' })];
  });
  step('transaction callback', () => {
    first.withTransaction(() => firstThings.insertOne({ _id: 't3' }));
    return firstThings.findOne({ _id: 't3' });
  });
  const update = (inside, x) => inside.updateOne({ _id: 't1' }, { $set: { x } }).modifiedCount;
  step('transaction first', () => {
    first.startTransaction();
    return update(firstThings, 'first');
  });
  step('transaction conflict', () => {
    second.startTransaction();
    return update(secondThings, 'second');
  });
  step('transaction conflict aborted', () => second.abortTransaction());
  step('transaction first commit', () => first.commitTransaction());
  step('transaction again', () => {
    second.startTransaction();
    const count = update(secondThings, 'second');
    second.commitTransaction();
    return [count, things.findOne({ _id: 't1' })];
  });
  step('transaction after abort', () => {
    second.startTransaction();
    secondThings.insertOne({ _id: 't4' });
    second.abortTransaction();
    return secondThings.findOne({ _id: 't4' });
  });
  first.endSession();
  second.endSession();
}

function changeStream() {
  let token = null;
  step('change stream', () => {
    const stream = mine.watched.watch([], { maxAwaitTimeMS: 200 });
    // Without this setting, mongosh prints a warning between the lines of the steps.
    stream.disableBlockWarnings();
    const nothing = stream.tryNext();
    mine.watched.insertOne({ _id: 1 });
    mine.watched.updateOne({ _id: 1 }, { $set: { a: 1 } });
    mine.watched.deleteOne({ _id: 1 });
    const events = [stream.next(), stream.next(), stream.next()];
    stream.close();
    token = events[1]._id;
    return [nothing, ...events];
  });
  if (token === null) return;
  step('change stream resumed', () => {
    const stream = mine.watched.watch([], { resumeAfter: token });
    stream.disableBlockWarnings();
    const event = stream.next();
    stream.close();
    return event;
  });
}

function unacknowledgedAndLarge() {
  step('unacknowledged', () => {
    // The writes run one by one on one connection of the driver's pool, so their order is kept.
    for (let n = 0; n < 50; n += 1) mine.unacknowledged.insertOne({ _id: n }, { writeConcern: { w: 0 } });
    return mine.unacknowledged.countDocuments({});
  });
  const MIB = 1024 * 1024;
  // The size of a document with the two fields, without the bytes and the characters of its _id.
  const OVERHEAD_BYTES = 27;
  const sized = (_id, length) => ({
    _id, bytes: Binary(Buffer.alloc(length - OVERHEAD_BYTES - _id.length, 'all the same text')),
  });
  step('large', () => {
    const large = sized('large', 16 * MIB - 64);
    mine.large.insertOne(large);
    return [bsonsize(large), ...digest(mine.large.findOne({ _id: 'large' }).bytes.buffer)];
  });
  step('too large', () => mine.large.insertOne(sized('too large', 16 * MIB + 1024)));
}

function errors() {
  const added = { input: { $range: [0, 20000] }, initialValue: 0, in: { $add: ['$$value', '$$this'] } };
  const slow = { $expr: { $gte: [{ $reduce: added }, 0] } };
  const created = (kind) => mine.createCollection('validated', { validator: { n: { $type: kind } } });
  step('error duplicate key', () => things.insertOne({ _id: 1 }));
  step('error unknown operator', () => things.findOne({ $nope: 1 }));
  step('error unknown command', () => mine.runCommand({ noSuchCommand: 1 }));
  step('error not authorised', () => db.getSiblingDB('elsewhere').things.insertOne({ _id: 1 }));
  step('error maxTimeMS', () => things.find(slow).maxTimeMS(50).toArray());
  step('error create validated', () => created('int'));
  step('error document validation', () => mine.validated.insertOne({ _id: 1, n: 'text' }));
  step('error cursor not found', () => mine.runCommand({ getMore: Long(123456789), collection: 'things' }));
  step('error collection exists', () => created('string'));
  step('error index', () => things.createIndex({ group: 1 }, { name: 'conflict' }));
  step('error index conflict', () => things.createIndex({ text: 1 }, { name: 'conflict' }));
  step('error write concern', () => things.insertOne({ _id: 'unmet' }, { writeConcern: { w: 50, wtimeout: 100 } }));
  step('error invalid namespace', () => mine.runCommand({ find: '' }));
  step('error immutable field', () => things.updateOne({ _id: 1 }, { $set: { _id: 2 } }));
  step('error cursor of a wrong type', () => mine.runCommand({ getMore: 'text', collection: 'things' }));
  // The driver numbers transactions itself, so the session must never have been used.
  const fresh = Mongo(mongo.getURI());
  step('error transaction never begun', () => fresh.getDB('admin').adminCommand(
    { commitTransaction: 1, txnNumber: Long(1000), autocommit: false }));
}

function administration() {
  step('create index', () => things.createIndex({ group: 1, text: 1 }));
  step('create sparse index', () => things.createIndex({ seen: 1 }, { sparse: true, name: 'sparse' }));
  step('list indexes', () => things.getIndexes());
  step('drop index', () => things.dropIndex('sparse'));
  step('indexes left', () => things.getIndexKeys());
  step('create with validator', () => mine.createCollection('strict', { validator: { a: { $exists: true } } }));
  step('create capped', () => mine.createCollection('ring', { capped: true, size: 4096, max: 10 }));
  step('create view', () => mine.createView('view', 'things', [{ $match: { group: 1 } }, { $project: { group: 1 } }]));
  step('list collections', () => mine.getCollectionInfos().sort((one, other) => (one.name < other.name ? -1 : 1)));
  step('read view', () => mine.view.find().sort({ _id: 1 }).limit(3).toArray());
  if (api === 'plain') step('collection statistics', () => mine.runCommand({ collStats: 'strict' }));
  step('database statistics', () => mine.runCommand({ dbStats: 1 }).ok);
  step('drop', () => mine.dropDatabase());
}

statusAndInserts();
types();
findOptions();
concernsAndPreferences();
counts();
updates();
findAndModify();
deletesAndBulks();
aggregate();
cursors();
sessions();
transactions();
changeStream();
unacknowledgedAndLarge();
errors();
administration();
