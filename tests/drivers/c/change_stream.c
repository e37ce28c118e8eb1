/* A change stream that is read, and then resumed. */
#include "common.h"

/* Prints the next event. If there is no event, the limit ends the wait. Copies the event if the
 * caller wants it. */
static void
tell_event (const char *step, mongoc_change_stream_t *stream, bson_t *copy)
{
   const bson_t *event, *reply;
   bson_error_t error;
   for (int tries = 0; tries < 20; tries++) {
      if (mongoc_change_stream_next (stream, &event)) {
         say (step, event);
         if (copy) {
            bson_concat (copy, event);
         }
         return;
      }
      if (mongoc_change_stream_error_document (stream, &error, &reply)) {
         say_error (step, &error, reply);
         return;
      }
   }
   say_text (step, "no event");
}

static void
make_changes (run_t *run)
{
   bson_error_t error;
   bool ok = mongoc_collection_insert_one (run->things, json ("{'_id': 'watched', 'n': 1}"), NULL, NULL, &error) &&
             mongoc_collection_update_one (run->things, json ("{'_id': 'watched'}"), json ("{'$inc': {'n': 1}}"), NULL,
                                           NULL, &error) &&
             mongoc_collection_delete_one (run->things, json ("{'_id': 'watched'}"), NULL, NULL, &error);
   require (ok, "changes to watch", &error);
}

void
change_stream (run_t *run)
{
   bson_t *second = empty (), *pipeline = json ("{'pipeline': [{'$match': {'documentKey._id': 'watched'}}]}");
   mongoc_change_stream_t *stream = mongoc_collection_watch (run->things, pipeline, json ("{'maxAwaitTimeMS': 1000}"));
   make_changes (run);
   tell_event ("change stream: insert", stream, NULL);
   tell_event ("change stream: update", stream, second);
   tell_event ("change stream: delete", stream, NULL);
   mongoc_change_stream_destroy (stream);

   bson_iter_t iter;
   if (bson_iter_init_find (&iter, second, "_id")) {
      bson_t *options = json ("{'maxAwaitTimeMS': 1000}");
      BSON_APPEND_VALUE (options, "resumeAfter", bson_iter_value (&iter));
      stream = mongoc_collection_watch (run->things, pipeline, options);
      tell_event ("change stream: resumed after the second event", stream, NULL);
      mongoc_change_stream_destroy (stream);
   } else {
      say_text ("change stream: resumed after the second event", "no second event");
   }
}
