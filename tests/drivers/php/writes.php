<?php
/* Writes: inserts, every type, updates, find and modify, deletes, unacknowledged and large
 * writes. */

declare(strict_types=1);

use MongoDB\BSON\Binary;
use MongoDB\BSON\Decimal128;
use MongoDB\BSON\Javascript;
use MongoDB\BSON\MaxKey;
use MongoDB\BSON\MinKey;
use MongoDB\BSON\ObjectId;
use MongoDB\BSON\Regex;
use MongoDB\BSON\Timestamp;
use MongoDB\BSON\UTCDateTime;
use MongoDB\Driver\WriteConcern;

use function MongoDB\BSON\fromJSON;
use function MongoDB\BSON\fromPHP;
use function MongoDB\BSON\toPHP;

const MIB = 1024 * 1024;

function inserts(Run $run): void
{
    $document = fn (int $n) => ['_id' => $n, 'text' => "text $n", 'group' => $n % 7];
    $majority = ['writeConcern' => new WriteConcern(WriteConcern::MAJORITY)];
    $run->attempt('insert one', fn () => $run->write(
        'things',
        fn ($bulk) => $bulk->insert($document(0)),
        ['bypassDocumentValidation' => true],
        $majority,
    ));
    $run->attempt('insert many', fn () => $run->write('things', function ($bulk) use ($document) {
        foreach (range(1, 299) as $n) {
            $bulk->insert($document($n));
        }
    }, ['ordered' => false, 'bypassDocumentValidation' => true], $majority));
    // A separate step, because servers before 4.4 refuse the comment.
    $run->attempt('insert with a comment', fn () => $run->write(
        'commented',
        fn ($bulk) => $bulk->insert($document(0)),
        ['comment' => 'one'],
    ));
}

/**
 * Every BSON type. Deprecated types have no constructors, so they are parsed from extended JSON.
 */
function documentOfAllTypes(): array
{
    $bytes = "\x00\xff\x10\x80\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b";
    $id = '0123456789abcdef01234567';
    $old = toPHP(fromJSON(
        '{"undefined": {"$undefined": true}, "symbol": {"$symbol": "symbol"},'
        . ' "DBPointer": {"$dbPointer": {"$ref": "db.things", "$id": {"$oid": "' . $id . '"}}}}'
    ));
    return [
        '_id' => 'types',
        'double' => 1.5,
        'negative zero' => -0.0,
        'text' => 'naïve Ω 🌊',
        'text with a zero' => "a\0b",
        'document' => ['a' => (object) ['b' => []]],
        'array' => [null, true, [1.5]],
        'binary' => new Binary(substr($bytes, 0, 4), Binary::TYPE_GENERIC),
        'binary, old' => new Binary(substr($bytes, 0, 4), Binary::TYPE_OLD_BINARY),
        'UUID' => new Binary($bytes, Binary::TYPE_UUID),
        'binary, user defined' => new Binary('', Binary::TYPE_USER_DEFINED),
        'undefined' => $old->undefined,
        'object id' => new ObjectId($id),
        'false' => false,
        'date' => new UTCDateTime(1577923200123),
        'date before 1970' => new UTCDateTime(-1),
        'null' => null,
        'regular expression' => new Regex('^a/b$', 'im'),
        'DBPointer' => $old->DBPointer,
        'code' => new Javascript('function() { return 1; }'),
        'symbol' => $old->symbol,
        'code with scope' => new Javascript('function() { return a; }', ['a' => 1]),
        'int32' => -2 ** 31,
        'timestamp' => new Timestamp(7, 1577923200),
        'int64' => PHP_INT_MAX,
        'decimal128' => new Decimal128('1.10'),
        'least key' => new MinKey(),
        'greatest key' => new MaxKey(),
    ];
}

function types(Run $run): void
{
    $run->attempt('types: written', fn () => $run->write('things', fn ($bulk) => $bulk->insert(documentOfAllTypes())));
    $run->attempt('types: read back', fn () => $run->find('things', ['_id' => 'types']));
}

function updates(Run $run): void
{
    $new = ['_id' => 'new'];
    $steps = [
        'one' => [['_id' => 10], ['$set' => ['seen' => true]], []],
        'many' => [['group' => 2], ['$set' => ['seen' => true]], ['multi' => true]],
        'upsert' => [$new, ['$set' => ['list' => [1, 5, 9]]], ['upsert' => true]],
        'array filters' => [$new, ['$set' => ['list.$[big]' => 0]], ['arrayFilters' => [['big' => ['$gt' => 4]]]]],
        'pipeline' => [$new, [['$set' => ['size' => ['$size' => '$list']]], ['$unset' => 'nothing']], []],
        'replace' => [['_id' => 11], ['text' => 'replaced', 'group' => 11], []],
        'collation' => [
            ['text' => 'TEXT 12'],
            ['$set' => ['found' => true]],
            ['multi' => true, 'collation' => ['locale' => 'en', 'strength' => 2]],
        ],
        'hint' => [['_id' => ['$lt' => 3]], ['$inc' => ['hinted' => 1]], ['multi' => true, 'hint' => ['_id' => 1]]],
    ];
    foreach ($steps as $name => $update) {
        $run->attempt("updates: $name", fn () => $run->write('things', fn ($bulk) => $bulk->update(...$update)));
    }
    $run->attempt(
        'updates: read back',
        fn () => $run->find('things', ['_id' => ['$in' => [1, 10, 11, 12, 'new']]], ['sort' => ['_id' => 1]]),
    );
}

function findAndModify(Run $run): void
{
    $inc = ['$inc' => ['times' => 1]];
    $steps = [
        'update, before' => ['query' => ['group' => 4], 'update' => $inc],
        'update, after' => ['query' => ['group' => 4], 'update' => $inc, 'new' => true, 'fields' => ['times' => 1]],
        'replace' => ['query' => ['_id' => 20], 'update' => ['text' => 'replaced'], 'new' => true],
        'upsert' => [
            'query' => ['_id' => 'upserted'],
            'update' => ['$set' => ['a' => 1]],
            'new' => true,
            'upsert' => true,
        ],
        'delete' => ['query' => ['group' => 4], 'remove' => true, 'fields' => ['text' => 0]],
        'nothing found' => ['query' => ['_id' => 'none'], 'update' => ['$set' => ['a' => 1]]],
    ];
    foreach ($steps as $name => $fields) {
        $command = ['findAndModify' => 'things', 'sort' => ['_id' => -1]] + $fields;
        $run->attempt("find and modify: $name", fn () => $run->reply($command));
    }
}

function deletes(Run $run): void
{
    $steps = [
        'one' => [['_id' => 30], ['limit' => true]],
        'many' => [['group' => 5], []],
        'hint' => [['_id' => ['$gte' => 290, '$lt' => 293]], ['hint' => ['_id' => 1]]],
    ];
    foreach ($steps as $name => $delete) {
        $run->attempt("deletes: $name", fn () => $run->write('things', fn ($bulk) => $bulk->delete(...$delete)));
    }
}

function unacknowledged(Run $run): void
{
    $options = ['writeConcern' => new WriteConcern(0)];
    $run->attempt('unacknowledged: in a session', fn () => $run->write(
        'unacknowledged',
        fn ($bulk) => $bulk->insert(['_id' => 'in a session']),
        options: $options + ['session' => $run->manager->startSession()],
    ));
    $run->attempt('unacknowledged: counted', function () use ($run, $options) {
        foreach (range(0, 49) as $n) {
            $run->write('unacknowledged', fn ($bulk) => $bulk->insert(['_id' => $n]), options: $options);
        }
        // The driver has one connection per server, so the count runs after the inserts.
        return $run->reply(['count' => 'unacknowledged'])->n;
    });
}

/** A document of this many bytes. The bytes of its field depend only on their positions. */
function documentOfSize(string $id, int $size): array
{
    $pattern = '';
    for ($n = 0; $n < 251; $n++) {
        $pattern .= chr($n * 31 % 251);
    }
    $document = fn (int $length) => [
        '_id' => $id,
        'bytes' => new Binary(substr(str_repeat($pattern, intdiv($length, 251) + 1), 0, $length), Binary::TYPE_GENERIC),
    ];
    return $document($size - strlen(fromPHP($document(0))));
}

function large(Run $run): void
{
    $insert = fn (array $document) => $run->write('things', fn ($bulk) => $bulk->insert($document));
    $run->attempt('large: written', fn () => $insert(documentOfSize('large', 16 * MIB - 64)));
    $run->attempt('large: read back', function () use ($run) {
        [$found] = $run->find('things', ['_id' => 'large']);
        $bytes = $found->bytes->getData();
        return (object) [
            'size' => strlen(fromPHP($found)),
            'length' => strlen($bytes),
            'sha256' => hash('sha256', $bytes),
        ];
    });
    $run->attempt('large: refused', fn () => $insert(documentOfSize('too large', 16 * MIB + 1024)));
}
