//! Comparison of the policer with the kernel's: the number of packets of a burst that pass.
//!
//! The buckets gain a packet in twelve minutes, so that the result does not depend on timing.

use bench::peers::{LimiterOwner, PolicerSettings, burst_passed};
use host::command;

use crate::setting::{environment, turn};

#[test]
fn policer_passes_the_same_burst_as_the_kernels() {
    let Some(_turn) = turn("policer_passes_the_same_burst_as_the_kernels", &[]) else {
        return;
    };
    for burst in [8, 53] {
        let policing = PolicerSettings::burst_only(burst);
        let passed = |side| {
            burst_passed(&environment(), side, &policing)
                .expect("the burst can be sent and counted")
        };
        // The first ones, in order, and no other.
        let expected: Vec<u64> = (0..burst).collect();
        assert_eq!(passed(LimiterOwner::Trunkline), expected);
        if command::find("nft").is_some() {
            assert_eq!(passed(LimiterOwner::Kernel), expected);
        }
    }
}
