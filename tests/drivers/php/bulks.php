<?php
/* Bulk writes of mixed models, ordered and unordered: without an error, and with an error in the
 * middle. */

declare(strict_types=1);

use MongoDB\Driver\BulkWrite;

function addAll(BulkWrite $bulk): void
{
    $bulk->insert(['_id' => 'a', 'n' => 1]);
    $bulk->insert(['_id' => 'b', 'n' => 2]);
    $bulk->update(['_id' => 'a'], ['$inc' => ['n' => 10]]);
    $bulk->update(['n' => ['$type' => 'number']], ['$set' => ['seen' => true]], ['multi' => true]);
    $bulk->update(['_id' => 'c'], ['$set' => ['n' => 3]], ['upsert' => true]);
    $bulk->update(['_id' => 'd'], ['n' => 4], ['upsert' => true]);
    $bulk->delete(['_id' => 'b'], ['limit' => true]);
    $bulk->delete(['n' => ['$gt' => 100]]);
}

function addFailing(BulkWrite $bulk): void
{
    $bulk->insert(['_id' => 'e', 'n' => 5]);
    $bulk->update(['_id' => 'f'], ['$set' => ['n' => 6]], ['upsert' => true]);
    $bulk->insert(['_id' => 'a']);
    $bulk->insert(['_id' => 'g', 'n' => 7]);
    $bulk->update(['_id' => 'e'], ['$inc' => ['_id' => 1]]);
    $bulk->delete(['_id' => 'd'], ['limit' => true]);
}

function bulks(Run $run): void
{
    foreach (['ordered' => true, 'unordered' => false] as $name => $ordered) {
        $options = ['ordered' => $ordered];
        $run->attempt("bulk $name", fn () => $run->write($name, addAll(...), $options));
        $run->attempt("bulk $name: with errors", fn () => $run->write($name, addFailing(...), $options));
        // A separate step, because servers before 4.4 refuse the comment.
        $commented = $options + ['comment' => 'bulk'];
        $run->attempt("bulk $name: with a comment", fn () => $run->write("commented $name", addAll(...), $commented));
        $run->attempt("bulk $name: read back", fn () => $run->find($name, [], ['sort' => ['_id' => 1]]));
    }
}
