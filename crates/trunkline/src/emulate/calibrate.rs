//! `trunkline emulate calibrate`: measures the emulator and writes its certificate for this
//! machine.
//!
//! Exit codes: 0 every cell is within its bars, 1 some are not (they are named), 2 nothing could be
//! measured (the reason is on standard error).

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use emulator::calibrate;
use emulator::calibrate::holds::SettingRefusal;
use emulator::calibrate::{
    CalibrationCertificate, CalibrationOptions, DeviceKind, FILE_NAME, IpVersion, MeasuredQuantity,
    holds,
};
use emulator::link::control::HostCheck;
use emulator::link::{BridgeIo, LinkConfig, LinkDevices};
use host::{kernel, rootless};

use crate::environment::environment;
use crate::output::StandardOutput;
use crate::progress::progress;

/// Arguments of `trunkline emulate calibrate`.
#[derive(Debug, Args)]
pub(super) struct CalibrateArguments {
    /// Selects how the emulator is attached to the two measuring hosts: by tun, packet (a bridge by
    /// AF_PACKET) or xdp.
    #[arg(long, default_value = "tun")]
    device: DeviceKind,
    /// Measures with IPv6 packets, and not with IPv4 packets.
    #[arg(long)]
    ipv6: bool,
    /// Runs fewer and shorter measurements than without --quick, so that the calibration takes
    /// about a minute, and not half an hour.
    #[arg(long)]
    quick: bool,
    /// Measures only the listed properties of the emulator: rate, delay, jitter, loss, burst (of
    /// the token bucket), queue (the length of the queue), seeds (whether the same seed gives the
    /// same losses again).
    #[arg(long, value_name = "QUANTITY,...", value_delimiter = ',')]
    only: Vec<MeasuredQuantity>,
    /// Sets the seed of all random numbers [default: a new seed, which is printed].
    #[arg(long)]
    seed: Option<u64>,
    /// Sets for how many seeds the calibration counts the losses, with a short run for each seed
    /// [default: 200; with --quick 0].
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(20..=10_000))]
    seeds: Option<u32>,
    /// Also measures rates for which no earlier measurement shows that this host is fast enough,
    /// and marks the certificate as forced. Without --force, Trunkline refuses rates that no
    /// measurement supports.
    #[arg(long)]
    force: bool,
    /// Writes the certificate to this file [default: emulator-certificate.json in Trunkline's state
    /// directory; with --only or --ipv6, no certificate is written by default].
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Writes the raw samples of the measurements into this directory [default: the name of the
    /// certificate with .raw appended].
    #[arg(long, value_name = "DIR", conflicts_with = "no_raw")]
    raw: Option<PathBuf>,
    /// Writes no raw samples of the measurements.
    #[arg(long)]
    no_raw: bool,
    /// Prints the certificate as JSON.
    #[arg(long)]
    json: bool,
}

impl CalibrateArguments {
    pub(super) fn run(self) -> Result<()> {
        let code = match self.measure() {
            Ok(certificate) if certificate.within_bars => 0,
            Ok(_) => 1,
            Err(error) => {
                remark!("trunkline: {error:#}");
                2
            }
        };
        // Everything that was made has been removed by now.
        std::process::exit(code)
    }

    fn measure(&self) -> Result<CalibrationCertificate> {
        kernel::catch_interruptions();
        let environment = environment()?;
        let privileges = rootless::obtain(&environment)?;
        let output = match &self.output {
            Some(path) => Some(path.clone()),
            // A certificate of a part must not stand where reports look for one of the whole, and
            // one of IPv6 not where the host's own is looked for.
            None if self.only.is_empty() && !self.ipv6 => Some(state_directory()?.join(FILE_NAME)),
            None => None,
        };
        let options = CalibrationOptions {
            device: self.device,
            protocol: if self.ipv6 {
                IpVersion::V6
            } else {
                IpVersion::V4
            },
            quick: self.quick,
            only: self.only.clone(),
            seed: self.seed.unwrap_or_else(calibrate::fresh_seed),
            seeds: self.seeds,
            force: self.force,
            raw: match (&self.raw, &output) {
                (Some(path), _) => Some(path.clone()),
                (None, Some(path)) if !self.no_raw => Some(path.with_extension("raw")),
                (None, _) => None,
            },
        };
        let expected = calibrate::expected_s(&options);
        remark!(
            "seed {}; the measurement takes about {}; run nothing else on this machine",
            options.seed,
            in_words(expected)
        );
        let display = progress();
        let certificate = calibrate::calibrate(&environment, privileges, &options, &display);
        display.finish();
        let certificate = certificate?;
        if let Some(path) = &output {
            certificate.write(path)?;
            remark!("certificate: {}", path.display());
        }
        let mut out = StandardOutput::new();
        if self.json {
            serde_json::to_writer(&mut out, &certificate)?;
            writeln!(out)?;
        } else {
            write!(out, "{}", calibrate::table(&certificate))?;
        }
        Ok(certificate)
    }
}

fn in_words(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{seconds:.0} s")
    } else {
        format!("{:.0} min", (seconds / 60.0).ceil())
    }
}

/// Directory in which trunkline keeps its measurements of this machine.
///
/// # Errors
/// Fails when the environment names no directory.
pub(crate) fn state_directory() -> Result<PathBuf> {
    let named = |variable: &str| {
        std::env::var_os(variable)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    named("XDG_STATE_HOME")
        .or_else(|| Some(named("HOME")?.join(".local/state")))
        .map(|base| base.join("trunkline"))
        .context("neither XDG_STATE_HOME nor HOME names a directory; name a file with --output")
}

/// The certificate of this machine, in one sentence, if there is one.
pub(crate) fn citation() -> Option<String> {
    let path = state_directory().ok()?.join(FILE_NAME);
    Some(CalibrationCertificate::read(&path).ok()?.citation())
}

/// Check of whether this host can hold a setting, made before a link over these devices is set to
/// it. Beside a running link it uses only known results.
pub(super) fn host_check(devices: &LinkDevices) -> HostCheck {
    let device = match devices {
        LinkDevices::Tun { .. } => DeviceKind::Tun,
        LinkDevices::Bridge { io, .. } => match io {
            BridgeIo::Packet => DeviceKind::Packet,
            BridgeIo::Xdp => DeviceKind::Xdp,
        },
    };
    Box::new(move |present, next| check_holds(present, next, device).map_err(Into::into))
}

/// Checks whether this host can hold the link.
fn check_holds(
    present: Option<&LinkConfig>,
    next: &LinkConfig,
    device: DeviceKind,
) -> Result<(), SettingRefusal> {
    let (Ok(environment), Ok(state)) = (environment(), state_directory()) else {
        // Without a place to remember anything, a daemon's environment for one, nothing is known.
        return Ok(());
    };
    match present {
        None => holds::check(next, device, &environment, &state),
        Some(present) => holds::check_live(present, next, device, &state),
    }
}
