//! The policer beside the kernel's: what passes of a burst, counted.
//!
//! The buckets gain a packet in twelve minutes, so that nothing depends on how long anything takes.

use bench::peers::{LimiterOwner, PolicerSettings, burst_passed};
use host::command;

use crate::setting::{environment, turn};

#[test]
fn a_policer_passes_a_burst_to_the_packet_as_the_kernels_does() {
    let Some(_turn) = turn(
        "a_policer_passes_a_burst_to_the_packet_as_the_kernels_does",
        &[],
    ) else {
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
