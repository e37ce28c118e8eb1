package main

import (
	"bytes"
	"io"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

const fileID = "file"

func (p *program) files() {
	bucket := p.bucket()
	listed := func() (any, error) { return all(bucket.Find(ctx, bson.D{})) }
	step("gridfs: uploaded")(fileID, bucket.UploadFromStreamWithID(ctx, fileID, "file.bin", bytes.NewReader(content(1_000_000)),
		options.GridFSUpload().SetChunkSizeBytes(100*1024).SetMetadata(doc(`{"kind": "test"}`))))
	step("gridfs: downloaded")(downloaded(bucket))
	step("gridfs: listed")(listed())
	step("gridfs: range")(ranged(bucket))
	step("gridfs: deleted")(after(bucket.Delete(ctx, fileID), listed))
	step("gridfs: download of the deleted file")(downloaded(bucket))
}

func downloaded(bucket gridFSBucket) (any, error) {
	var file bytes.Buffer
	_, err := bucket.DownloadToStream(ctx, fileID, &file)
	return digest(file.Bytes()), err
}

// ranged reads from the middle of one chunk to the middle of another.
func ranged(bucket gridFSBucket) (any, error) {
	stream, err := bucket.OpenDownloadStream(ctx, fileID)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	if _, err := stream.Skip(250_000); err != nil {
		return nil, err
	}
	part := make([]byte, 100_000)
	_, err = io.ReadFull(stream, part)
	return digest(part), err
}
