// Initiates the replica set and creates the users of the example. Each step is skipped if it was
// done before, so this can run at every start.

const { ROOT_PASSWORD, SEAWALL_ACCOUNT_PASSWORD, APP_PASSWORD } = process.env;
const root = encodeURIComponent(ROOT_PASSWORD);
// A member that is not initiated can only be reached directly.
const admin = connect(`mongodb://root:${root}@mongodb:27017/admin?directConnection=true`);

const set = { _id: "rs0", members: [{ _id: 0, host: "mongodb:27017" }] };
try {
  admin.adminCommand({ replSetInitiate: set });
} catch (error) {
  if (error.codeName !== "AlreadyInitialized") throw error;
}

const deadline = Date.now() + 60_000;
while (!admin.hello().isWritablePrimary) {
  if (Date.now() > deadline) throw new Error("no primary after 60 s");
  sleep(200);
}

// The service account looks up the keys of users (viewUser), and reads serverStatus
// (clusterMonitor).
if (!admin.getRole("seawall")) {
  admin.createRole({
    role: "seawall",
    privileges: [{ resource: { db: "", collection: "" }, actions: ["viewUser"] }],
    roles: ["clusterMonitor"],
  });
}
if (!admin.getUser("seawall")) {
  admin.createUser({ user: "seawall", pwd: SEAWALL_ACCOUNT_PASSWORD, roles: ["seawall"] });
}
if (!admin.getUser("app")) {
  const roles = [{ role: "readWrite", db: "app" }];
  admin.createUser({ user: "app", pwd: APP_PASSWORD, roles });
}
print("replica set rs0 is ready");
