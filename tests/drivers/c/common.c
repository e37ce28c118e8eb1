#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define KEPT_MAX 1024

static bson_t *kept[KEPT_MAX];
static size_t kept_count;

void
require (bool ok, const char *what, const bson_error_t *error)
{
   if (ok) {
      return;
   }
   fprintf (stderr, "%s: %s\n", what, error ? error->message : "failed");
   exit (1);
}

static bson_t *
keep (bson_t *document)
{
   require (kept_count < KEPT_MAX, "too many documents in one group of steps", NULL);
   kept[kept_count++] = document;
   return document;
}

void
forget (void)
{
   while (kept_count > 0) {
      bson_destroy (kept[--kept_count]);
   }
}

/* Parses a document in extended JSON. The text has single quotes in place of double quotes, which
 * would need escapes in C. */
bson_t *
json (const char *format, ...)
{
   va_list arguments;
   va_start (arguments, format);
   char *text = bson_strdupv_printf (format, arguments);
   va_end (arguments);
   for (char *c = text; *c; c++) {
      if (*c == '\'') {
         *c = '"';
      }
   }
   bson_error_t error;
   bson_t *document = bson_new_from_json ((const uint8_t *) text, -1, &error);
   require (document, text, &error);
   bson_free (text);
   return keep (document);
}

bson_t *
empty (void)
{
   return keep (bson_new ());
}

/* Adds the session to the options, and returns the options. */
bson_t *
within (mongoc_client_session_t *session, bson_t *options)
{
   bson_error_t error;
   require (mongoc_client_session_append (session, options, &error), "session", &error);
   return options;
}

static const char *
next_index (const bson_t *list, char buffer[16])
{
   const char *index;
   bson_uint32_to_string (bson_count_keys (list), &index, buffer, 16);
   return index;
}

void
push (bson_t *list, const bson_t *document)
{
   char buffer[16];
   BSON_APPEND_DOCUMENT (list, next_index (list, buffer), document);
}

void
push_keys (bson_t *list, const bson_t *document)
{
   bson_iter_t iter;
   char buffer[16];
   require (bson_iter_init (&iter, document), "document", NULL);
   while (bson_iter_next (&iter)) {
      BSON_APPEND_UTF8 (list, next_index (list, buffer), bson_iter_key (&iter));
   }
}

static void
print_line (const bson_t *line)
{
   char *text = bson_as_canonical_extended_json (line, NULL);
   require (text, "extended JSON", NULL);
   puts (text);
   fflush (stdout);
   bson_free (text);
}

void
say (const char *step, const bson_t *value)
{
   bson_t line = BSON_INITIALIZER;
   BSON_APPEND_UTF8 (&line, "step", step);
   BSON_APPEND_DOCUMENT (&line, "value", value);
   print_line (&line);
   bson_destroy (&line);
}

void
say_list (const char *step, const bson_t *list)
{
   bson_t line = BSON_INITIALIZER;
   BSON_APPEND_UTF8 (&line, "step", step);
   BSON_APPEND_ARRAY (&line, "value", list);
   print_line (&line);
   bson_destroy (&line);
}

void
say_field (const char *step, const bson_t *document, const char *field)
{
   bson_t line = BSON_INITIALIZER;
   bson_iter_t iter;
   BSON_APPEND_UTF8 (&line, "step", step);
   if (bson_iter_init_find (&iter, document, field)) {
      BSON_APPEND_VALUE (&line, "value", bson_iter_value (&iter));
   } else {
      BSON_APPEND_NULL (&line, "value");
   }
   print_line (&line);
   bson_destroy (&line);
}

void
say_text (const char *step, const char *value)
{
   bson_t *document = empty ();
   BSON_APPEND_UTF8 (document, "text", value);
   say_field (step, document, "text");
}

void
say_number (const char *step, int64_t value)
{
   bson_t *document = empty ();
   BSON_APPEND_INT64 (document, "number", value);
   say_field (step, document, "number");
}

static void
print_quoted (const char *key, const char *text)
{
   if (!text) {
      printf ("\"%s\": null, ", key);
      return;
   }
   char *escaped = bson_utf8_escape_for_json (text, -1);
   require (escaped, "UTF-8", NULL);
   printf ("\"%s\": \"%s\", ", key, escaped);
   bson_free (escaped);
}

static void
print_labels (const bson_t *reply)
{
   bson_iter_t iter, label;
   printf ("\"labels\": [");
   if (bson_iter_init_find (&iter, reply, "errorLabels") && bson_iter_recurse (&iter, &label)) {
      for (const char *separator = ""; bson_iter_next (&label); separator = ", ") {
         printf ("%s\"%s\"", separator, bson_iter_utf8 (&label, NULL));
      }
   }
   printf ("], ");
}

/* The error's domain shows whether the driver or the server refused the operation. The reply has
 * all other fields. */
void
say_error (const char *step, const bson_error_t *error, const bson_t *reply)
{
   bson_iter_t iter;
   const char *name = NULL;
   bson_t *given = reply ? bson_copy (reply) : bson_new ();
   if (bson_iter_init_find (&iter, given, "codeName")) {
      name = bson_iter_utf8 (&iter, NULL);
   }
   char *text = bson_as_canonical_extended_json (given, NULL);
   require (text, "extended JSON", NULL);
   printf ("{ \"step\" : \"%s\", \"error\" : {\"code\": %u, \"domain\": %u, ", step, error->code, error->domain);
   print_quoted ("codeName", name);
   print_labels (given);
   print_quoted ("message", error->message);
   printf ("\"reply\": %s} }\n", text);
   fflush (stdout);
   bson_free (text);
   bson_destroy (given);
}

void
tell (const char *step, bool ok, bson_t *reply, const bson_error_t *error)
{
   if (ok) {
      say (step, reply);
   } else {
      say_error (step, error, reply);
   }
   bson_destroy (reply);
}

void
tell_cursor (const char *step, mongoc_cursor_t *cursor)
{
   bson_t *list = empty ();
   const bson_t *document, *reply;
   bson_error_t error;
   while (mongoc_cursor_next (cursor, &document)) {
      push (list, document);
   }
   if (mongoc_cursor_error_document (cursor, &error, &reply)) {
      say_error (step, &error, reply);
   } else {
      say_list (step, list);
   }
   mongoc_cursor_destroy (cursor);
}

void
tell_documents (const char *step, mongoc_collection_t *collection, bson_t *filter, bson_t *options)
{
   tell_cursor (step, mongoc_collection_find_with_opts (collection, filter, options, NULL));
}

void
tell_command (const char *step, run_t *run, const char *database, bson_t *command, bson_t *options)
{
   bson_t reply;
   bson_error_t error;
   bool ok = mongoc_client_command_with_opts (run->client, database, command, NULL, options, &reply, &error);
   tell (step, ok, &reply, &error);
}

mongoc_collection_t *
collection_named (run_t *run, const char *name)
{
   return mongoc_database_get_collection (run->database, name);
}

mongoc_client_session_t *
session_of (run_t *run, bool snapshot)
{
   bson_error_t error;
   mongoc_session_opt_t *options = mongoc_session_opts_new ();
   /* A session cannot be both causally consistent and a snapshot session. */
   mongoc_session_opts_set_causal_consistency (options, !snapshot);
   mongoc_session_opts_set_snapshot (options, snapshot);
   mongoc_client_session_t *session = mongoc_client_start_session (run->client, options, &error);
   require (session, "session", &error);
   mongoc_session_opts_destroy (options);
   return session;
}
