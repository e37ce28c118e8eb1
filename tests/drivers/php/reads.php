<?php
/* Reads: a query's options, read concerns and preferences, counts. */

declare(strict_types=1);

use MongoDB\Driver\ReadConcern;
use MongoDB\Driver\ReadPreference;

function findOptions(Run $run): void
{
    $steps = [
        'projection' => [
            ['_id' => 3],
            ['projection' => ['_id' => 0, 'group' => 1, 'twice' => ['$multiply' => ['$group', 2]]]],
        ],
        'sort, skip and limit' => [['group' => 3], ['sort' => ['group' => 1, '_id' => -1], 'skip' => 2, 'limit' => 3]],
        'collation' => [['text' => 'TEXT 7'], ['collation' => ['locale' => 'en', 'strength' => 2]]],
        'hint' => [['group' => 3, '_id' => ['$lt' => 20]], ['hint' => ['_id' => 1]]],
        'min and max' => [[], ['min' => ['_id' => 10], 'max' => ['_id' => 13], 'hint' => ['_id' => 1]]],
        'return key' => [['_id' => ['$gte' => 10, '$lt' => 13]], ['returnKey' => true, 'hint' => ['_id' => 1]]],
        'show record id' => [['_id' => 3], ['showRecordId' => true]],
        'let' => [['$expr' => ['$eq' => ['$_id', '$$wanted']]], ['let' => ['wanted' => 7]]],
        'allow disk use' => [['_id' => ['$lt' => 3]], ['allowDiskUse' => true, 'sort' => ['text' => -1]]],
        'comment' => [['_id' => 3], ['comment' => 'by the driver matrix']],
        'time limit' => [['_id' => 3], ['maxTimeMS' => 10000]],
        'single batch' => [['group' => 3], ['singleBatch' => true, 'batchSize' => 3, 'sort' => ['_id' => 1]]],
        'negative limit' => [['group' => 3], ['limit' => -3, 'sort' => ['_id' => 1]]],
        'batches' => [['group' => 3], ['batchSize' => 5, 'sort' => ['_id' => 1], 'projection' => ['_id' => 1]]],
    ];
    foreach ($steps as $name => [$filter, $options]) {
        $run->attempt("find options: $name", fn () => $run->find('things', $filter, $options));
    }
}

function readConcerns(Run $run): void
{
    foreach ([ReadConcern::LOCAL, ReadConcern::MAJORITY, ReadConcern::AVAILABLE] as $level) {
        $run->attempt(
            "read concerns: $level",
            fn () => $run->find('things', ['_id' => 3], ['readConcern' => new ReadConcern($level)]),
        );
    }
}

function readPreferences(Run $run): void
{
    foreach (['primary', 'primaryPreferred', 'secondary', 'secondaryPreferred', 'nearest'] as $mode) {
        $run->attempt("read preferences: $mode", function () use ($run, $mode) {
            $session = $run->manager->startSession(['causalConsistency' => true]);
            $run->write(
                'things',
                fn ($bulk) => $bulk->update(['_id' => 1], ['$set' => ['mode' => $mode]]),
                options: ['session' => $session],
            );
            $there = ['session' => $session, 'readPreference' => new ReadPreference($mode)];
            return $run->find('things', ['_id' => 1], [], $there);
        });
    }
}

function counts(Run $run): void
{
    $run->attempt('counts: with filter', fn () => $run->reply(['count' => 'things', 'query' => ['group' => 3]]));
    $run->attempt('counts: estimated', fn () => $run->reply(['count' => 'things']));
    $run->attempt('counts: distinct', fn () => $run->reply(['distinct' => 'things', 'key' => 'group']));
}
