//! What an encoder counts, for who asks why a flow gained what it did.

/// What reduction did for one direction of one flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowReduction {
    /// Bytes that came in.
    pub raw_bytes: u64,
    /// Bytes that went out, repairs not counted.
    pub encoded_bytes: u64,
    /// Raw bytes for which a reference was sent.
    pub referenced_bytes: u64,
    /// Raw bytes sent as they are or compressed.
    pub literal_bytes: u64,
    /// Of the literal bytes, those that compression could not make smaller.
    pub incompressible_bytes: u64,
    /// Of the literal bytes, those compressed against similar chunks that the peer holds.
    pub delta_bytes: u64,
    /// Records sent.
    pub records: u64,
    /// Repair requests answered.
    pub repairs: u64,
    /// Raw bytes sent again for them.
    pub repaired_bytes: u64,
}
