package main

import (
	"encoding/json"
	"errors"
	"os"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

// failure is the printed form of an error.
type failure struct {
	Code     *int            `json:"code"`
	CodeName *string         `json:"codeName"`
	Labels   []string        `json:"labels"`
	Message  string          `json:"message"`
	Details  json.RawMessage `json:"details,omitempty"`
}

// step returns a function that prints the step's line from the driver's results:
// step("ping")(reply, err).
func step(name string) func(any, error) {
	return func(value any, err error) {
		if err == nil {
			_, err := os.Stdout.Write(append(extendedJSON(bson.D{field("step", name), field("value", value)}), '\n'))
			must(err)
			return
		}
		line := struct {
			Step  string  `json:"step"`
			Error failure `json:"error"`
		}{name, described(value, err)}
		out := json.NewEncoder(os.Stdout)
		out.SetEscapeHTML(false)
		must(out.Encode(line))
	}
}

// described returns the printed form of an error, with the server's own text if there is one. For a
// bulk write, it also contains the result.
func described(result any, err error) failure {
	var command mongo.CommandError
	var write mongo.WriteException
	var bulk mongo.BulkWriteException
	switch {
	case errors.As(err, &bulk):
		printed := outlined(bulk, bulkWriteErrors(bulk), bulk.WriteConcernError, bulk.Labels)
		printed.Details = bulkDetails(result, bulk)
		return printed
	case errors.As(err, &write):
		printed := outlined(write, write.WriteErrors, write.WriteConcernError, write.Labels)
		printed.Details = details(write.Raw)
		return printed
	case errors.As(err, &command) && command.Code > 0:
		code := int(command.Code)
		return failure{&code, nonEmpty(command.Name), sorted(command.Labels), command.Message, details(command.Raw)}
	}
	return failure{Labels: []string{}, Message: err.Error()}
}

// outlined takes the code and message of the first write error, or else of the write concern error.
func outlined(err error, writes []mongo.WriteError, unmet *mongo.WriteConcernError, labels []string) failure {
	printed := failure{Labels: sorted(labels), Message: err.Error()}
	switch {
	case len(writes) > 0:
		printed.Code, printed.Message = &writes[0].Code, writes[0].Message
	case unmet != nil:
		printed.Code, printed.CodeName, printed.Message = &unmet.Code, nonEmpty(unmet.Name), unmet.Message
	}
	return printed
}

func bulkWriteErrors(err mongo.BulkWriteException) []mongo.WriteError {
	var writes []mongo.WriteError
	for _, each := range err.WriteErrors {
		writes = append(writes, each.WriteError)
	}
	return writes
}

// bulkDetails prints the index that the driver reports. The server's index counts only within one
// batch.
func bulkDetails(result any, err mongo.BulkWriteException) json.RawMessage {
	writes := bson.A{}
	for _, each := range err.WriteErrors {
		writes = append(writes, bson.D{field("index", each.Index), field("raw", each.Raw)})
	}
	printed := bson.D{field("result", result), field("writeErrors", writes)}
	if err.WriteConcernError != nil {
		printed = append(printed, field("writeConcernError", err.WriteConcernError.Raw))
	}
	return extendedJSON(printed)
}

func details(raw bson.Raw) json.RawMessage {
	if raw == nil {
		return nil
	}
	return extendedJSON(raw)
}

func extendedJSON(document any) []byte {
	text, err := bson.MarshalExtJSON(document, true, false)
	must(err)
	return text
}

func nonEmpty(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

func sorted(labels []string) []string {
	labels = append([]string{}, labels...)
	slices.Sort(labels)
	return labels
}
