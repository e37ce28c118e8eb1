<?php
/*
 * The steps of an application with PHP's MongoDB extension. Prints one line of JSON per step; see
 * ../scenarios.md.
 *
 * Run: php script.php URI DATABASE stable|plain
 *
 * The program uses only the extension (MongoDB\Driver), not the library on top of it, which is a
 * separate download. So it sends commands where the extension has no call: counts, find and modify,
 * aggregation, everything about indexes and collections, and the change stream, which is the cursor
 * of an aggregation.
 *
 * The program skips "gridfs" and the callback form of "transactions", because the extension does
 * not have them.
 *
 * Values are the extension's values in canonical extended JSON. PHP has one integer type, so a
 * 64-bit integer that fits 32 bits is printed as one of 32 bits. An error has its code, name,
 * labels and message, and also its class, the server's reply or the write's result, and the
 * previous error.
 */

declare(strict_types=1);

require __DIR__ . '/run.php';
require __DIR__ . '/reads.php';
require __DIR__ . '/writes.php';
require __DIR__ . '/bulks.php';
require __DIR__ . '/aggregates.php';
require __DIR__ . '/sessions.php';
require __DIR__ . '/changestream.php';
require __DIR__ . '/errors.php';
require __DIR__ . '/administration.php';

function main(array $arguments): void
{
    if (count($arguments) !== 4) {
        fwrite(STDERR, "usage: $arguments[0] URI DATABASE stable|plain\n");
        exit(2);
    }
    // A warning is a bug of the program and ends it.
    set_error_handler(function (int $level, string $message, string $file, int $line): never {
        throw new ErrorException($message, 0, $level, $file, $line);
    });
    $run = new Run($arguments[1], $arguments[2], $arguments[3] === 'stable');
    status($run);
    inserts($run);
    types($run);
    findOptions($run);
    readConcerns($run);
    readPreferences($run);
    counts($run);
    updates($run);
    findAndModify($run);
    deletes($run);
    bulks($run);
    aggregates($run);
    cursors($run);
    sessions($run);
    transactions($run);
    changeStream($run);
    unacknowledged($run);
    large($run);
    errors($run);
    administration($run);
    drop($run);
}

main($argv);
