//! Surroundings and keys that simulated nodes get in place of those of an operating system and of TLS.

use std::convert::Infallible;

use engine::{NetworkRoute, NetworkSurroundings, RouteSide};
use tunnel::DatagramAgreement;
use tunnel::packet::{ChallengeSeed, KeyLimits, PathSecret};
use tunnel::transport::PathKeys;
use vocab::Time;

/// Networks of the client's and of the server's site.
pub const LANS: [&str; 2] = ["198.18.1.0/24", "198.18.2.0/24"];
/// Addresses of both nodes in these networks.
pub const LAN_ADDRESSES: [&str; 2] = ["198.18.1.1", "198.18.2.1"];
/// Network between the nodes.
const WAN: &str = "198.18.0.0/24";

/// Routes and addresses of the client's node (0) or of the server's (1).
///
/// # Panics
/// When there is no such node.
#[must_use]
pub fn site_surroundings(own: usize) -> NetworkSurroundings {
    let prefix = |text: &str| text.parse().expect("it is a prefix");
    let route = |to: &str, side| NetworkRoute {
        to: prefix(to),
        side,
    };
    NetworkSurroundings {
        routes: vec![
            route("0.0.0.0/0", RouteSide::Other),
            route(WAN, RouteSide::Other),
            route(LANS[own], RouteSide::Lan),
        ],
        own: ["127.0.0.0/8", "::1", LAN_ADDRESSES[own]]
            .map(prefix)
            .to_vec(),
    }
}

/// Keys of the first path of a link, from a secret that both ends know, as both ends of a TLS connection
/// export the same one. The keys protect nothing: anyone can derive them from the agreement.
///
/// # Panics
/// When the agreement has no context.
#[must_use]
pub fn public_path_keys(
    now: Time,
    agreement: DatagramAgreement,
    challenges: ChallengeSeed,
) -> PathKeys {
    let DatagramAgreement {
        role,
        context,
        connection_ids,
        ..
    } = agreement;
    let suite = context.suite;
    let export = |room: &mut [u8], _: &'static [u8], context: &[u8]| {
        for (place, byte) in room.iter_mut().enumerate() {
            *byte = context[place % context.len()];
        }
        Ok::<(), Infallible>(())
    };
    let Ok(mut secret) = PathSecret::export(role, context, export);
    let (sealer, opener) = secret
        .path(now, 0, connection_ids, KeyLimits::of(suite))
        .expect("the first path of a link has keys");
    PathKeys {
        sealer,
        opener,
        challenges,
    }
}
