/* The steps of an application with libmongoc. Prints a line of JSON per step; see ../scenarios.md.
 *
 * Build: cc -o OUT *.c $(pkg-config --cflags --libs libmongoc-1.0)
 * Run:   OUT URI DATABASE stable|plain
 *
 * An error has its code, name, labels and message, the driver's error domain, and the reply.
 *
 * The program runs all steps. It sends raw commands where the driver has no call: connectionStatus,
 * buildInfo, distinct, createIndexes, explain and the statistics. It reads a range of a GridFS file
 * with the older interface (mongoc_gridfs_t), because a bucket's streams cannot seek. The driver
 * refuses unacknowledged writes in a session. That refusal is the step's outcome, and the writes
 * follow without a session. A read preference without a suitable server fails at once, which is the
 * default of a client without a pool.
 */
#include "common.h"

#include <stdio.h>

typedef void (*group_t) (run_t *run);

static const group_t GROUPS[] = {
   status,           inserts,          types,            find_options,
   read_concerns,    read_preferences, counts,           updates,
   find_and_modify,  deletes,          bulks,            aggregates,
   cursors,          sessions,         transactions,     change_stream,
   gridfs,           unacknowledged,   large,            errors,
   administration,   drop,
};

static void
use_stable_api (mongoc_client_t *client)
{
   bson_error_t error;
   mongoc_server_api_t *api = mongoc_server_api_new (MONGOC_SERVER_API_V1);
   mongoc_server_api_strict (api, true);
   require (mongoc_client_set_server_api (client, api, &error), "Stable API", &error);
   mongoc_server_api_destroy (api);
}

/* The driver's own handler writes some levels to standard output, which must contain only the
 * steps. */
static void
log_to_stderr (mongoc_log_level_t level, const char *domain, const char *message, void *unused)
{
   BSON_UNUSED (unused);
   fprintf (stderr, "%s: %s: %s\n", mongoc_log_level_str (level), domain, message);
}

int
main (int argc, char **argv)
{
   if (argc != 4) {
      fprintf (stderr, "usage: %s URI DATABASE stable|plain\n", argv[0]);
      return 2;
   }
   mongoc_init ();
   mongoc_log_set_handler (log_to_stderr, NULL);
   bson_error_t error;
   mongoc_uri_t *uri = mongoc_uri_new_with_error (argv[1], &error);
   require (uri, "connection string", &error);
   run_t run = {.client = mongoc_client_new_from_uri (uri), .name = argv[2], .stable = !strcmp (argv[3], "stable")};
   require (run.client, "client", NULL);
   mongoc_client_set_error_api (run.client, MONGOC_ERROR_API_VERSION_2);
   if (run.stable) {
      use_stable_api (run.client);
   }
   run.database = mongoc_client_get_database (run.client, run.name);
   run.things = collection_named (&run, "things");
   for (size_t i = 0; i < sizeof GROUPS / sizeof *GROUPS; i++) {
      GROUPS[i](&run);
      forget ();
   }
   mongoc_collection_destroy (run.things);
   mongoc_database_destroy (run.database);
   mongoc_client_destroy (run.client);
   mongoc_uri_destroy (uri);
   mongoc_cleanup ();
   return 0;
}
