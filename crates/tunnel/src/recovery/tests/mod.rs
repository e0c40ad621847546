//! The rules of recovery, each with the section that it is from.

use std::time::Duration;

use vocab::Time;

mod received;
mod sent;

const RTT: Duration = Duration::from_millis(100);

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn at(milliseconds: u64) -> Time {
    Time::from_epoch(ms(milliseconds))
}
