//! One TCP connection that fills the link from A to B while another measurement runs.
//!
//! After it has ended, the kernel has nothing left to send again: all data has come through, and
//! both ends are closed by reset.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::stand::{CellDirection, TestBed};
use host::stamped_sockets as system;

/// One write, and the room of one read.
const BLOCK_BYTES: usize = 256 << 10;

/// Time without progress after which a connection is given up.
const STANDSTILL: Duration = Duration::from_secs(5);

/// Does `work` from `lead` after the connection's beginning, which covers its slow start; returns
/// the bits of payload per second that came through meanwhile.
///
/// # Errors
/// When the connection does not come about or brings nothing, or `work` fails.
pub(super) fn run_beside_tcp<T>(
    stand: &TestBed,
    lead: Duration,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, f64)> {
    let (mut sender, mut receiver) = stand.connection(CellDirection::Forward)?;
    for end in [&sender, &receiver] {
        end.set_read_timeout(Some(STANDSTILL))?;
        end.set_write_timeout(Some(STANDSTILL))?;
        system::reset_on_close(end).context("setting a connection's end")?;
    }
    let stop = AtomicBool::new(false);
    let received = AtomicU64::new(0);
    let done = thread::scope(|scope| {
        scope.spawn(|| {
            let block = vec![0_u8; BLOCK_BYTES];
            while !stop.load(Ordering::Relaxed) {
                if sender.write_all(&block).is_err() {
                    break;
                }
            }
            // It fails only for a connection that is broken, whose receiver knows.
            let _ = sender.shutdown(Shutdown::Write);
        });
        scope.spawn(|| {
            let mut room = vec![0_u8; BLOCK_BYTES];
            while let Ok(count @ 1..) = receiver.read(&mut room) {
                received.fetch_add(count as u64, Ordering::Relaxed);
            }
        });
        thread::sleep(lead);
        let (before, start) = (received.load(Ordering::Relaxed), Instant::now());
        let result = work();
        let bytes = received.load(Ordering::Relaxed) - before;
        let rate = bytes as f64 * 8.0 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        result.map(|result| (result, rate))
    })?;
    if done.1 <= 0.0 {
        bail!("nothing came through the TCP connection");
    }
    Ok(done)
}

/// Measures the rate of one connection, in bits of payload per second.
///
/// # Errors
/// Fails as [`run_beside_tcp`] does.
pub(super) fn rate(stand: &TestBed, span: Duration) -> Result<f64> {
    let (_, rate) = run_beside_tcp(stand, SLOW_START, || {
        thread::sleep(span);
        Ok(())
    })?;
    Ok(rate)
}

/// Slow start without a delay is over by then.
const SLOW_START: Duration = Duration::from_millis(500);
