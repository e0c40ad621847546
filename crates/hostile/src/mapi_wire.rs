//! Entries of `mapi`: the PDUs of DCE/RPC, the frames of the accelerator's halves, and the halves of
//! MAPI over HTTP.

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

/// Bytes as what reaches the halves of MAPI over HTTP.
pub(crate) fn http_halves(bytes: &[u8]) {
    mapi::testing::http_halves(bytes);
}

/// Good inputs for [`http_halves`].
pub(crate) fn http_halves_seeds() -> Vec<CorpusSeed> {
    let samples = mapi::testing::http_samples().into_iter();
    samples.map(|(name, steps)| seed(name, steps)).collect()
}
