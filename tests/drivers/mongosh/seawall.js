// Asks Seawall about itself, as an operator does in the shell. Prints one line of JSON per topic.

const topics = ['status', 'pools', 'clients', 'shapes', 'storms', 'stalls', 'config', 'reload'];

for (const topic of topics) {
    try {
        const reply = db.adminCommand({ seawall: topic });
        print(EJSON.stringify({ step: topic, value: reply }));
    } catch (error) {
        print(EJSON.stringify({ step: topic, error: { code: error.code, codeName: error.codeName, message: error.message } }));
    }
}
