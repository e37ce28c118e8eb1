// What an application does, by the official Go driver; prints one line of JSON a step.
//
// Arguments: connection string, database, "stable" or "plain"; or first "writers", then connection string, database and a
// name, for what writes under failures. The steps are those of scenarios.md, in its order. Build and run, with Go 1.25 or later:
//
//	go build -C tests/drivers/go -o PATH .
//	PATH URI DATABASE stable|plain
//
// The newest driver is version 2; ../matrix builds the same program with version 1 too: see v2.go.
//
// The driver has no maxTimeMS and no wtimeout of its own any more: those steps send the commands as they are. It takes an
// unacknowledged write in an explicit session, but sends it without the session.
package main

import (
	"context"
	"fmt"
	"os"

	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// No deadline: the driver would turn one into the server's maxTimeMS.
var ctx = context.Background()

// program is what every step works with.
type program struct {
	client *mongo.Client
	db     *mongo.Database
	stable bool
}

func main() {
	if len(os.Args) == 5 && os.Args[1] == "writers" {
		client, err := connect(options.Client().ApplyURI(os.Args[2]))
		must(err)
		writeUntilTold(client, os.Args[3], os.Args[4])
		must(client.Disconnect(ctx))
		return
	}
	if len(os.Args) != 4 || (os.Args[3] != "stable" && os.Args[3] != "plain") {
		fmt.Fprintln(os.Stderr, "usage: driver URI DATABASE stable|plain, or driver writers URI DATABASE NAME")
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

// must ends the program where a step's preparation fails: that is no outcome of a step.
func must(err error) {
	if err != nil {
		panic(err)
	}
}
