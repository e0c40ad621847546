//! A drawn path: which device of the kernel, its parameters, and the causes that are then in it.
//!
//! The actual behaviour of the devices was measured: `nft limit` in packets holds exactly its
//! burst; in bytes its bucket is a second's worth of the rate plus the burst (nft_limit.c: `nsecs ×
//! (rate + burst)`), counted on IP packets, with kbytes of 1,024; tbf counts an Ethernet header
//! with each packet, and with room for two packets behind its bucket it drops like a policer. A tbf
//! whose bucket holds one packet is a plain line with a queue.

use std::collections::BTreeSet;
use std::time::Duration;

use measure::diagnosis::{BucketTruth, DiagnosisCause};
use serde::{Deserialize, Serialize};
use vocab::{ByteCount, SeededRandom};

/// The Ethernet header that tbf counts with each packet.
const ETHERNET_BYTES: u64 = 14;
/// The IP packet on a path without a black hole.
const PACKET_BYTES: u64 = 1_500;
/// Ratio of the tester's greatest rate to the bottleneck's (its search overloads by half).
const OVERLOAD: f64 = 1.5;
/// A queue below this share of the BDP is too shallow, by the definition of the cause.
const SHALLOW: f64 = 0.5;

/// Device that limits packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BottleneckDevice {
    /// `nft limit rate over N/second burst N packets drop`.
    NftPackets {
        /// Packets a second.
        per_second: u64,
        /// The bucket.
        packets: u64,
    },
    /// `nft limit rate over N kbytes/second burst N kbytes drop`.
    NftBytes {
        /// Rate in units of 1,024 bytes.
        kbytes_per_second: u64,
        /// Burst beyond a second's worth.
        kbytes: u64,
    },
    /// `tbf rate R burst B limit L`.
    Tbf {
        /// Counted with Ethernet headers.
        rate_bit_s: u64,
        /// Likewise.
        burst_bytes: u64,
        /// Packets of full size that find room.
        queue_packets: u64,
    },
    /// No bottleneck; the tester is told not to go faster than this.
    Open {
        /// Rate of IP packets.
        max_rate_bit_s: u64,
    },
}

/// A path.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathCase {
    /// Seed that it was drawn from.
    pub seed: u64,
    /// Its number among those of the seed.
    pub index: u32,
    /// The bottleneck.
    pub device: BottleneckDevice,
    /// Both delays together.
    pub rtt_ms: f64,
    /// Random loss towards the server, in percent.
    pub loss_percent: f64,
    /// Larger IP packets vanish.
    pub mtu: Option<u16>,
    /// Connections of the TCP run.
    pub connections: u16,
}

impl PathCase {
    /// Draws the case of this number: five rates in six from 1 to 40 Mbit/s, RTT 5 to 300 ms.
    #[must_use]
    pub fn draw(seed: u64, index: u32) -> Self {
        let mut random = SeededRandom::for_stream(seed, u64::from(index));
        let rate = log_uniform(&mut random, 1e6, 40e6);
        let rtt = log_uniform(&mut random, 0.005, 0.3);
        let mtu = (random.below(12) == 0).then(|| 1_300 + random.below(150) as u16);
        let packet = mtu.map_or(PACKET_BYTES, u64::from);
        let in_packets = |bytes: f64| (bytes / packet as f64).round() as u64;
        // A second at the rate at most, so that a case is over in seconds.
        let most = (rate / 8.0).clamp(16e3, 2e6);
        let burst = log_uniform(&mut random, 8e3, most);
        let bdp = rate / 8.0 * rtt;
        // Clear of the definition's edge: neither 0.45 nor 0.6 of a BDP is in question.
        let deep = ((0.6 + 1.2 * random.next_f64()) * bdp).min(rate / 8.0 * 0.4);
        let shallow = 0.42 * random.next_f64() * bdp;
        let queue = match in_packets([deep, shallow][random.below(2) as usize]).max(4) {
            // The least queue, or rounding, may bring it back to that edge.
            near if (0.42..0.6).contains(&((near * packet) as f64 / bdp)) => {
                (0.6 * bdp / packet as f64).ceil() as u64
            }
            clear => clear,
        };
        let on_ethernet =
            |bytes: f64| (bytes * (1.0 + ETHERNET_BYTES as f64 / packet as f64)) as u64;
        let tbf = |burst_bytes, queue_packets| BottleneckDevice::Tbf {
            rate_bit_s: on_ethernet(rate),
            burst_bytes,
            queue_packets,
        };
        let device = match random.below(20) {
            0..6 => BottleneckDevice::NftPackets {
                per_second: in_packets(rate / 8.0).max(40),
                packets: in_packets(burst).max(6),
            },
            // What is left over in a bucket of a second and more is much to send at high rates.
            6..8 => BottleneckDevice::NftBytes {
                kbytes_per_second: (rate.min(8e6) / 8_192.0) as u64,
                kbytes: 5 + random.below(80),
            },
            8..10 => tbf(on_ethernet(burst), 2),
            10..17 => tbf(on_ethernet(burst), queue),
            17..19 => tbf(packet + ETHERNET_BYTES, queue),
            _ => BottleneckDevice::Open {
                max_rate_bit_s: rate as u64,
            },
        };
        let loss_percent = match random.below(4) {
            0 => 0.4 + 2.6 * random.next_f64() * random.next_f64(),
            _ => 0.0,
        };
        Self {
            seed,
            index,
            device,
            rtt_ms: (rtt * 1e3 * 100.0).round() / 100.0,
            loss_percent: (loss_percent * 1e3).round() / 1e3,
            mtu,
            connections: [1, 1, 4][random.below(3) as usize],
        }
    }

    /// The IP packet of full size.
    fn packet(&self) -> u64 {
        self.mtu.map_or(PACKET_BYTES, u64::from)
    }

    /// Rate and bucket, counted on IP packets of full size.
    #[must_use]
    pub fn truth(&self) -> BucketTruth {
        let packet = self.packet();
        let on_ip = packet as f64 / (packet + ETHERNET_BYTES) as f64;
        match self.device {
            BottleneckDevice::NftPackets {
                per_second,
                packets,
            } => BucketTruth {
                rate: (per_second * packet * 8) as f64,
                burst: Some((packets * packet) as f64),
            },
            BottleneckDevice::NftBytes {
                kbytes_per_second,
                kbytes,
            } => BucketTruth {
                rate: (kbytes_per_second * 8_192) as f64,
                burst: Some(((kbytes_per_second + kbytes) * 1_024) as f64),
            },
            BottleneckDevice::Tbf {
                rate_bit_s,
                burst_bytes,
                ..
            } => BucketTruth {
                rate: rate_bit_s as f64 * on_ip,
                burst: Some(burst_bytes as f64 * on_ip),
            },
            BottleneckDevice::Open { max_rate_bit_s } => BucketTruth {
                rate: max_rate_bit_s as f64,
                burst: None,
            },
        }
    }

    /// Bytes of IP packets that find room behind the bucket.
    fn queue(&self) -> u64 {
        match self.device {
            BottleneckDevice::Tbf { queue_packets, .. } => queue_packets * self.packet(),
            BottleneckDevice::NftPackets { .. }
            | BottleneckDevice::NftBytes { .. }
            | BottleneckDevice::Open { .. } => 0,
        }
    }

    /// The causes that are in it, as docs/guides/diagnosis.md defines them.
    #[must_use]
    pub fn causes(&self) -> BTreeSet<DiagnosisCause> {
        let truth = self.truth();
        let is_shallow = (self.queue() as f64) < SHALLOW * self.bdp();
        let mut causes = BTreeSet::new();
        match self.device {
            BottleneckDevice::NftPackets { .. } | BottleneckDevice::NftBytes { .. } => {
                causes.insert(DiagnosisCause::Policer);
            }
            BottleneckDevice::Tbf {
                queue_packets: 0..=2,
                ..
            } => {
                causes.insert(DiagnosisCause::Policer);
            }
            BottleneckDevice::Tbf { .. } => {
                let is_bucket = truth.burst.unwrap_or_default() > 2.0 * self.packet() as f64;
                if is_bucket {
                    causes.insert(DiagnosisCause::Shaper);
                }
                if is_shallow {
                    causes.insert(DiagnosisCause::ShallowBuffer);
                } else if !is_bucket {
                    causes.insert(DiagnosisCause::DropTailQueue);
                }
            }
            BottleneckDevice::Open { .. } => {}
        }
        // TCP is told no rate, and nothing on such a path stops it: it gets what its window allows in a round
        // trip, whatever streams were told. Losses hold it back before that.
        if matches!(self.device, BottleneckDevice::Open { .. }) && self.loss_percent == 0.0 {
            causes.insert(DiagnosisCause::HostWindow);
        }
        if self.loss_percent > 0.0 {
            causes.insert(DiagnosisCause::RandomLoss);
        }
        if self.mtu.is_some() {
            causes.insert(DiagnosisCause::MtuBlackHole);
        }
        if causes.is_empty() {
            causes.insert(DiagnosisCause::None);
        }
        causes
    }

    fn bdp(&self) -> f64 {
        self.truth().rate / 8.0 * self.rtt_ms / 1e3
    }

    /// Bytes that pass or wait before the first one is dropped.
    fn room(&self) -> f64 {
        self.truth().burst.unwrap_or_default() + self.queue() as f64
    }

    /// Duration of a measuring stream, whose second half must find the bucket empty and the queue
    /// full.
    #[must_use]
    pub fn measure_for(&self) -> Duration {
        let filled = self.room() / ((OVERLOAD - 1.0) * self.truth().rate / 8.0);
        Duration::from_secs_f64((2.2 * filled + 1.0).clamp(3.0, 9.0).ceil())
    }

    /// Time for an empty bucket to become full again.
    pub(super) fn rest(&self) -> Duration {
        let filled = self.room() / (self.truth().rate / 8.0);
        Duration::from_secs_f64((1.1 * filled + 0.5).ceil())
    }

    /// A window that each connection needs for all of them together to meet the bottleneck.
    pub(super) fn window(&self) -> ByteCount {
        let all = 4.0 * (self.bdp() + self.room()) + 200_000.0;
        ByteCount::new((all / f64::from(self.connections)).min(8e6) as u64)
    }

    /// The rule of nft in the way there.
    pub(super) fn rule(&self) -> Option<String> {
        let policer = match self.device {
            BottleneckDevice::NftPackets {
                per_second,
                packets,
            } => Some(format!(
                "limit rate over {per_second}/second burst {packets} packets drop"
            )),
            BottleneckDevice::NftBytes {
                kbytes_per_second,
                kbytes,
            } => Some(format!(
                "limit rate over {kbytes_per_second} kbytes/second burst {kbytes} kbytes drop"
            )),
            BottleneckDevice::Tbf { .. } | BottleneckDevice::Open { .. } => None,
        };
        // What vanishes in the black hole has not been counted by the policer.
        let hole = self.mtu.map(|mtu| format!("ip length > {mtu} drop"));
        let rules: Vec<String> = hole
            .into_iter()
            .chain(policer)
            .map(|rule| format!("iifname wan0 {rule}"))
            .collect();
        (!rules.is_empty()).then(|| rules.join("\n"))
    }

    /// The queueing discipline before the server.
    pub(super) fn discipline(&self) -> Option<String> {
        match self.device {
            BottleneckDevice::Tbf {
                rate_bit_s,
                burst_bytes,
                queue_packets,
            } => {
                let limit = queue_packets * (self.packet() + ETHERNET_BYTES);
                Some(format!(
                    "tbf rate {rate_bit_s}bit burst {burst_bytes} limit {limit}"
                ))
            }
            BottleneckDevice::NftPackets { .. }
            | BottleneckDevice::NftBytes { .. }
            | BottleneckDevice::Open { .. } => None,
        }
    }

    /// No stream may be faster.
    pub(super) fn max_rate(&self) -> Option<u64> {
        match self.device {
            BottleneckDevice::Open { max_rate_bit_s } => Some(max_rate_bit_s),
            BottleneckDevice::NftPackets { .. }
            | BottleneckDevice::NftBytes { .. }
            | BottleneckDevice::Tbf { .. } => None,
        }
    }
}

fn log_uniform(random: &mut SeededRandom, least: f64, most: f64) -> f64 {
    least * (most / least).powf(random.next_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_follow_their_seed_and_cover_every_device() {
        let drawn: Vec<PathCase> = (0..120).map(|index| PathCase::draw(7, index)).collect();
        assert_eq!(drawn[3], PathCase::draw(7, 3));
        assert_ne!(drawn[3].rtt_ms, PathCase::draw(8, 3).rtt_ms);
        let count = |cause| {
            drawn
                .iter()
                .filter(|case| case.causes().contains(&cause))
                .count()
        };
        assert!(count(DiagnosisCause::Policer) >= 30 && count(DiagnosisCause::Shaper) >= 25);
        assert!(
            count(DiagnosisCause::RandomLoss) >= 15 && count(DiagnosisCause::MtuBlackHole) >= 3
        );
        assert!(count(DiagnosisCause::ShallowBuffer) >= 10);
    }

    #[test]
    fn device_name_matches_its_settings() {
        let case = |device| PathCase {
            seed: 1,
            index: 0,
            device,
            rtt_ms: 40.0,
            loss_percent: 0.0,
            mtu: None,
            connections: 1,
        };
        let bytes = case(BottleneckDevice::NftBytes {
            kbytes_per_second: 100,
            kbytes: 20,
        });
        // A second's worth of the rate and the burst, kbytes of 1,024.
        assert_eq!(bytes.truth().burst, Some(120.0 * 1_024.0));
        assert_eq!(bytes.truth().rate, 819_200.0);
        let tbf = case(BottleneckDevice::Tbf {
            rate_bit_s: 1_514_000,
            burst_bytes: 15_140,
            queue_packets: 2,
        });
        assert_eq!(tbf.truth().rate.round(), 1_500_000.0);
        assert_eq!(tbf.causes(), BTreeSet::from([DiagnosisCause::Policer]));
        assert_eq!(
            tbf.discipline().as_deref(),
            Some("tbf rate 1514000bit burst 15140 limit 3028")
        );
        let line = case(BottleneckDevice::Tbf {
            rate_bit_s: 1_514_000,
            burst_bytes: 1_514,
            queue_packets: 40,
        });
        assert_eq!(
            line.causes(),
            BTreeSet::from([DiagnosisCause::DropTailQueue])
        );
    }
}
