/* Bulk writes of mixed models, ordered and unordered: without an error, and with an error in the
 * middle. */
#include "common.h"

static mongoc_bulk_operation_t *
new_bulk (mongoc_collection_t *collection, bool ordered)
{
   return mongoc_collection_create_bulk_operation_with_opts (
      collection, json ("{'ordered': %s}", ordered ? "true" : "false"));
}

/* An operation that the driver refuses to add is a bug of this program. */
static void
add_all (mongoc_bulk_operation_t *bulk)
{
   bson_error_t error;
   bool added =
      mongoc_bulk_operation_insert_with_opts (bulk, json ("{'_id': 'a', 'n': 1}"), NULL, &error) &&
      mongoc_bulk_operation_insert_with_opts (bulk, json ("{'_id': 'b', 'n': 2}"), NULL, &error) &&
      mongoc_bulk_operation_update_one_with_opts (bulk, json ("{'_id': 'a'}"), json ("{'$inc': {'n': 10}}"), NULL,
                                                  &error) &&
      mongoc_bulk_operation_update_many_with_opts (bulk, json ("{'n': {'$type': 'number'}}"),
                                                   json ("{'$set': {'seen': true}}"), NULL, &error) &&
      mongoc_bulk_operation_update_one_with_opts (bulk, json ("{'_id': 'c'}"), json ("{'$set': {'n': 3}}"),
                                                  json ("{'upsert': true}"), &error) &&
      mongoc_bulk_operation_replace_one_with_opts (bulk, json ("{'_id': 'd'}"), json ("{'n': 4}"),
                                                   json ("{'upsert': true}"), &error) &&
      mongoc_bulk_operation_remove_one_with_opts (bulk, json ("{'_id': 'b'}"), NULL, &error) &&
      mongoc_bulk_operation_remove_many_with_opts (bulk, json ("{'n': {'$gt': 100}}"), NULL, &error);
   require (added, "bulk", &error);
}

static void
add_failing (mongoc_bulk_operation_t *bulk)
{
   bson_error_t error;
   bool added =
      mongoc_bulk_operation_insert_with_opts (bulk, json ("{'_id': 'e', 'n': 5}"), NULL, &error) &&
      mongoc_bulk_operation_update_one_with_opts (bulk, json ("{'_id': 'f'}"), json ("{'$set': {'n': 6}}"),
                                                  json ("{'upsert': true}"), &error) &&
      mongoc_bulk_operation_insert_with_opts (bulk, json ("{'_id': 'a'}"), NULL, &error) &&
      mongoc_bulk_operation_insert_with_opts (bulk, json ("{'_id': 'g', 'n': 7}"), NULL, &error) &&
      mongoc_bulk_operation_update_one_with_opts (bulk, json ("{'_id': 'e'}"), json ("{'$inc': {'_id': 1}}"), NULL,
                                                  &error) &&
      mongoc_bulk_operation_remove_one_with_opts (bulk, json ("{'_id': 'd'}"), NULL, &error);
   require (added, "bulk", &error);
}

static void
execute (const char *step, mongoc_bulk_operation_t *bulk)
{
   bson_t reply;
   bson_error_t error;
   bool ok = mongoc_bulk_operation_execute (bulk, &reply, &error) != 0;
   tell (step, ok, &reply, &error);
   mongoc_bulk_operation_destroy (bulk);
}

/* A separate step, because servers before 4.4 refuse the comment. */
static void
commented (run_t *run, const char *name, bool ordered)
{
   char *step = bson_strdup_printf ("bulk %s: with a comment", name);
   char *other = bson_strdup_printf ("commented %s", name);
   mongoc_collection_t *collection = collection_named (run, other);
   mongoc_bulk_operation_t *bulk = mongoc_collection_create_bulk_operation_with_opts (
      collection, json ("{'ordered': %s, 'comment': 'bulk'}", ordered ? "true" : "false"));
   add_all (bulk);
   execute (step, bulk);
   mongoc_collection_destroy (collection);
   bson_free (other);
   bson_free (step);
}

static void
one_way (run_t *run, const char *name, bool ordered)
{
   mongoc_collection_t *collection = collection_named (run, name);
   mongoc_bulk_operation_t *bulk = new_bulk (collection, ordered);
   char *step = bson_strdup_printf ("bulk %s", name);
   char *failing = bson_strdup_printf ("%s: with errors", step);
   char *reading = bson_strdup_printf ("%s: read back", step);
   add_all (bulk);
   execute (step, bulk);
   bulk = new_bulk (collection, ordered);
   add_failing (bulk);
   execute (failing, bulk);
   tell_documents (reading, collection, empty (), json ("{'sort': {'_id': 1}}"));
   bson_free (step);
   bson_free (failing);
   bson_free (reading);
   mongoc_collection_destroy (collection);
}

void
bulks (run_t *run)
{
   one_way (run, "ordered", true);
   one_way (run, "unordered", false);
   commented (run, "ordered", true);
   commented (run, "unordered", false);
}
