//! Waiting for a condition, never for a time.
//!
//! Every wait has a limit and a name, so that an error names the missing condition, and every wait
//! ends at once when the lab is interrupted.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::kernel;

/// Interval of checks of a condition: short compared with anything the lab measures, long compared
/// with the cost of a check.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Returns what `look` finds as soon as it finds something.
///
/// # Errors
/// When nothing is found within `limit` (the message says `what` was waited for), when `look`
/// fails, or when the lab is interrupted.
pub fn until<T>(limit: Duration, what: &str, look: impl FnMut() -> Result<Option<T>>) -> Result<T> {
    poll(limit, what, look, not_interrupted)
}

/// Waits as [`until`] does, also in an interrupted lab that removes what it made.
///
/// # Errors
/// When nothing is found within `limit`, or when `look` fails.
pub fn until_removed<T>(
    limit: Duration,
    what: &str,
    look: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    poll(limit, what, look, || Ok(()))
}

fn poll<T>(
    limit: Duration,
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>>,
    may_go_on: impl Fn() -> Result<()>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = look()? {
            return Ok(found);
        }
        may_go_on()?;
        if start.elapsed() >= limit {
            bail!(
                "waited {} s in vain for {what}",
                limit.as_secs_f64().round()
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Fails if the lab has been asked to stop.
///
/// # Errors
/// When it has.
pub fn not_interrupted() -> Result<()> {
    if kernel::interrupted() {
        bail!("interrupted; what was made has been removed");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timed_out_wait_names_its_condition() {
        let mut looks = 0;
        let found = until(Duration::from_secs(5), "three looks", || {
            looks += 1;
            Ok((looks == 3).then_some(looks))
        });
        assert_eq!(found.unwrap(), 3);
        let error = until::<()>(Duration::ZERO, "the moon", || Ok(None)).unwrap_err();
        assert!(error.to_string().contains("the moon"));
    }
}
