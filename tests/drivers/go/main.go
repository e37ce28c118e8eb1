// The steps of an application with the official Go driver. Prints one line of JSON per step.
//
// Arguments: connection string, database, "stable" or "plain". For the writers during failures:
// "writers", connection string, database and a name. For TLS connections: "tls" and connection
// strings. The steps are those of ../scenarios.md, in the same order. Build and run with Go 1.25 or
// later:
//
//	go build -C tests/drivers/go -o PATH .
//	PATH URI DATABASE stable|plain
//
// The newest driver is version 2. The test also builds the same program with version 1: see v2.go.
//
// The driver has no maxTimeMS and no wtimeout options any more, so those steps send raw commands.
// It accepts an unacknowledged write in an explicit session, but sends it without the session.
package main

import (
	"context"
	"fmt"
	"os"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// The context has no deadline, because the driver would send a deadline to the server as maxTimeMS.
var ctx = context.Background()

// program is the state that all steps share.
type program struct {
	client *mongo.Client
	db     *mongo.Database
	stable bool
}

func main() {
	if len(os.Args) == 5 && os.Args[1] == "writers" {
		client, err := connect(options.Client().ApplyURI(os.Args[2]))
		must(err)
		writeUntilStopped(client, os.Args[3], os.Args[4])
		must(client.Disconnect(ctx))
		return
	}
	if len(os.Args) > 2 && os.Args[1] == "tls" {
		tryConnections(os.Args[2:])
		return
	}
	if len(os.Args) != 4 || (os.Args[3] != "stable" && os.Args[3] != "plain") {
		fmt.Fprintln(os.Stderr, "usage: driver URI DATABASE stable|plain, driver writers URI DATABASE NAME, or driver tls URI...")
		os.Exit(2)
	}
	settings := options.Client().ApplyURI(os.Args[1])
	stable := os.Args[3] == "stable"
	if stable {
		settings.SetServerAPIOptions(options.ServerAPI(options.ServerAPIVersion1).SetStrict(true))
	}
	client, err := connect(settings)
	must(err)
	run(&program{client: client, db: client.Database(os.Args[2]), stable: stable})
	must(client.Disconnect(ctx))
}

func run(p *program) {
	p.status()
	p.inserts()
	p.findOptions()
	p.readConcerns()
	p.readPreferences()
	p.counts()
	p.updates()
	p.findAndModify()
	p.deletes()
	p.bulks()
	p.aggregations()
	p.cursors()
	p.sessions()
	p.transactions()
	p.changeStream()
	p.files()
	p.unacknowledged()
	p.largeBatches()
	p.large()
	p.failures()
	p.indexes()
	p.collections()
	p.statistics()
	p.drop()
}

// must ends the program if a step's preparation fails. Such a failure is not an outcome of the
// step.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
