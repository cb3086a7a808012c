// Ids by name: numeric ones depend on where the checkout lies, and the bundle is committed and compared.
module.exports = { optimization: { moduleIds: 'named', chunkIds: 'named' } };
