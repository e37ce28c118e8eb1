<?php
/* Commands about the server, the collections and the indexes. */

declare(strict_types=1);

function status(Run $run): void
{
    $run->attempt('status: ping', fn () => $run->reply(['ping' => 1]));
    $run->attempt('status: users and roles', fn () => $run->reply(['connectionStatus' => 1])->authInfo);
    $run->attempt('status: version', fn () => $run->reply(['buildInfo' => 1])->version);
}

function indexes(Run $run): void
{
    $listed = fn () => $run->command(['listIndexes' => 'indexed']);
    $run->attempt('administration: create indexes', fn () => $run->reply(['createIndexes' => 'indexed', 'indexes' => [
        ['key' => ['group' => 1], 'name' => 'by group'],
        ['key' => ['text' => 1, '_id' => -1], 'name' => 'by text', 'unique' => true],
    ]]));
    $run->attempt('administration: list indexes', $listed);
    $run->attempt('administration: drop an index', function () use ($run, $listed) {
        $run->reply(['dropIndexes' => 'indexed', 'index' => 'by text']);
        return $listed();
    });
    $run->attempt('administration: drop indexes', fn () => $run->reply(['dropIndexes' => 'indexed', 'index' => '*']));
    $run->attempt('administration: list indexes again', $listed);
}

function collections(Run $run): void
{
    $run->attempt('administration: collection with validator', fn () => $run->reply([
        'create' => 'validated',
        'validator' => ['n' => ['$gte' => 0]],
        'validationLevel' => 'moderate',
        'validationAction' => 'error',
    ]));
    $run->attempt(
        'administration: capped collection',
        fn () => $run->reply(['create' => 'capped', 'capped' => true, 'size' => 8192, 'max' => 10]),
    );
    $run->attempt('administration: view', fn () => $run->reply([
        'create' => 'least',
        'viewOn' => 'things',
        'pipeline' => [['$match' => ['_id' => ['$lt' => 3]]], ['$project' => ['text' => 1]]],
    ]));
    $run->attempt('administration: list collections', function () use ($run) {
        $found = $run->command(['listCollections' => 1]);
        // Sorted by name, because servers return them in any order.
        usort($found, fn ($a, $b) => $a->name <=> $b->name);
        return $found;
    });
    $run->attempt('administration: view read', fn () => $run->find('least', [], ['sort' => ['_id' => 1]]));
}

function administration(Run $run): void
{
    indexes($run);
    collections($run);
    if (!$run->stable) {
        // The statistics that do not depend on the storage engine's state, and the names of all
        // other statistics.
        $run->attempt('administration: collection statistics', function () use ($run) {
            $all = (array) $run->reply(['collStats' => 'validated']);
            $same = array_flip(['ns', 'size', 'count', 'nindexes', 'capped', 'ok']);
            return array_intersect_key($all, $same) + ['keys' => array_keys($all)];
        });
    }
    $run->attempt('administration: database statistics', fn () => $run->reply(['dbStats' => 1])->ok);
}

function drop(Run $run): void
{
    $run->attempt('drop', fn () => $run->reply(['dropDatabase' => 1]));
}
