//! Entries of `mapi`: the PDUs of DCE/RPC, and the frames of the accelerator's halves.

use crate::seed::{CorpusSeed, seed};

/// Bytes as every structure of DCE/RPC.
pub(crate) fn dce_rpc(bytes: &[u8]) {
    mapi::testing::structures(bytes);
}

/// Good inputs for [`dce_rpc`].
pub(crate) fn dce_rpc_seeds() -> Vec<CorpusSeed> {
    let conversation = mapi::testing::conversation().into_iter();
    conversation
        .map(|(name, bytes)| seed(name, bytes))
        .collect()
}
