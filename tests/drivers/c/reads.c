/* Reads: the options of a find, read concerns and preferences, counts. */
#include "common.h"

void
find_options (run_t *run)
{
   mongoc_collection_t *things = run->things;
   bson_t *all = empty ();
   tell_documents ("find options: projection", things, json ("{'_id': 3}"),
                   json ("{'projection': {'_id': 0, 'group': 1, 'twice': {'$multiply': ['$group', 2]}}}"));
   tell_documents ("find options: sort, skip and limit", things, json ("{'group': 3}"),
                   json ("{'sort': {'group': 1, '_id': -1}, 'skip': 2, 'limit': {'$numberLong': '3'}}"));
   tell_documents ("find options: collation", things, json ("{'text': 'TEXT 7'}"),
                   json ("{'collation': {'locale': 'en', 'strength': 2}}"));
   tell_documents ("find options: hint", things, json ("{'group': 3, '_id': {'$lt': 20}}"),
                   json ("{'hint': {'_id': 1}}"));
   tell_documents ("find options: min and max", things, all,
                   json ("{'min': {'_id': 10}, 'max': {'_id': 13}, 'hint': {'_id': 1}}"));
   tell_documents ("find options: return key", things, json ("{'_id': {'$gte': 10, '$lt': 13}}"),
                   json ("{'returnKey': true, 'hint': {'_id': 1}}"));
   tell_documents ("find options: show record id", things, json ("{'_id': 3}"), json ("{'showRecordId': true}"));
   tell_documents ("find options: let", things, json ("{'$expr': {'$eq': ['$_id', '$$wanted']}}"),
                   json ("{'let': {'wanted': 7}}"));
   tell_documents ("find options: allow disk use", things, json ("{'_id': {'$lt': 3}}"),
                   json ("{'allowDiskUse': true, 'sort': {'text': -1}}"));
   tell_documents ("find options: comment", things, json ("{'_id': 3}"), json ("{'comment': 'by the driver matrix'}"));
   tell_documents ("find options: time limit", things, json ("{'_id': 3}"), json ("{'maxTimeMS': 10000}"));
   tell_documents ("find options: single batch", things, json ("{'group': 3}"),
                   json ("{'singleBatch': true, 'batchSize': 3, 'sort': {'_id': 1}}"));
   tell_documents ("find options: negative limit", things, json ("{'group': 3}"),
                   json ("{'limit': {'$numberLong': '-3'}, 'sort': {'_id': 1}}"));
   tell_documents ("find options: batches", things, json ("{'group': 3}"),
                   json ("{'batchSize': 5, 'sort': {'_id': 1}, 'projection': {'_id': 1}}"));
}

void
read_concerns (run_t *run)
{
   static const char *const LEVELS[] = {"local", "majority", "available"};
   for (size_t i = 0; i < 3; i++) {
      char *step = bson_strdup_printf ("read concerns: %s", LEVELS[i]);
      tell_documents (step, run->things, json ("{'_id': 3}"), json ("{'readConcern': {'level': '%s'}}", LEVELS[i]));
      bson_free (step);
   }
}

void
read_preferences (run_t *run)
{
   static const struct {
      mongoc_read_mode_t mode;
      const char *name;
   } MODES[] = {
      {MONGOC_READ_PRIMARY, "primary"},
      {MONGOC_READ_PRIMARY_PREFERRED, "primaryPreferred"},
      {MONGOC_READ_SECONDARY, "secondary"},
      {MONGOC_READ_SECONDARY_PREFERRED, "secondaryPreferred"},
      {MONGOC_READ_NEAREST, "nearest"},
   };
   for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
      bson_error_t error;
      char *step = bson_strdup_printf ("read preferences: %s", MODES[i].name);
      mongoc_client_session_t *session = session_of (run, false);
      bson_t *options = within (session, empty ());
      bool written = mongoc_collection_update_one (run->things, json ("{'_id': 1}"),
                                                   json ("{'$set': {'mode': '%s'}}", MODES[i].name),
                                                   options, NULL, &error);
      if (written) {
         mongoc_read_prefs_t *preference = mongoc_read_prefs_new (MODES[i].mode);
         tell_cursor (step,
                      mongoc_collection_find_with_opts (run->things, json ("{'_id': 1}"), options, preference));
         mongoc_read_prefs_destroy (preference);
      } else {
         say_error (step, &error, NULL);
      }
      mongoc_client_session_destroy (session);
      bson_free (step);
   }
}

void
counts (run_t *run)
{
   bson_t reply;
   bson_error_t error;
   int64_t count =
      mongoc_collection_count_documents (run->things, json ("{'group': 3}"), NULL, NULL, &reply, &error);
   if (count >= 0) {
      say_number ("counts: with filter", count);
   } else {
      say_error ("counts: with filter", &error, &reply);
   }
   bson_destroy (&reply);
   count = mongoc_collection_estimated_document_count (run->things, NULL, NULL, &reply, &error);
   if (count >= 0) {
      say_number ("counts: estimated", count);
   } else {
      say_error ("counts: estimated", &error, &reply);
   }
   bson_destroy (&reply);
   tell_command ("counts: distinct", run, run->name, json ("{'distinct': 'things', 'key': 'group'}"), NULL);
}
