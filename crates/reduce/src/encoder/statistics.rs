//! Encoder counters that explain how much a flow gained from reduction.

/// Effect of reduction on one direction of one flow.
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
    /// Literal bytes that compression could not make smaller.
    pub incompressible_bytes: u64,
    /// Literal bytes that were compressed against similar chunks that the peer holds.
    pub delta_bytes: u64,
    /// Records sent.
    pub records: u64,
    /// Repair requests answered.
    pub repairs: u64,
    /// Raw bytes sent again for them.
    pub repaired_bytes: u64,
}
