//! Bytes on the WAN for an object that is stored: fresh, and to be revalidated. Each is fetched over a connection of
//! its own.
//!
//! What crosses the WAN while nothing is asked, for as long, is subtracted: signs of life of the session.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde_json::json;

use super::HttpChoice;
use super::client::ClientPlace;
use super::report::CellFigures;
use super::stand::{HttpStand, NodeHttpMode, WAN_LINK};
use host::ProgramEnvironment;
use lab::recording::WanCrossings;
use lab::topology::OffloadMode;

/// Bytes of an object.
const OBJECT_BYTES: usize = 2_000;
/// Clients that fetch side by side: one after the other would wait for a round trip a thousand times.
const CLIENTS: usize = 20;
/// How long what belongs to earlier flows may still cross.
const SETTLING: Duration = Duration::from_secs(3);

/// Measures the cell.
///
/// # Errors
/// When an object does not arrive, or a capture fails.
pub(super) fn measure(
    environment: &ProgramEnvironment,
    choice: &HttpChoice,
    step: &dyn Fn(&str),
) -> Result<CellFigures> {
    let mut stand = HttpStand::create(environment, OffloadMode::Off, false)?;
    stand.set_link(&WAN_LINK.parse()?)?;
    stand.start_nodes(NodeHttpMode::On, &[])?;
    let mut figures = CellFigures::default();
    let mut raw = serde_json::Map::new();
    for (kind, figure) in [
        ("fresh", "fresh_object_wan_bytes"),
        ("checked", "revalidated_object_wan_bytes"),
    ] {
        let mut objects = Vec::new();
        for number in 0..choice.objects {
            let path = format!("/{kind}/{number}");
            let content = stand
                .origin()
                .publish(&path, OBJECT_BYTES, 1 + number as u64)?;
            objects.push((path, content));
        }
        step(&format!("{kind}: storing"));
        fetch_all(stand.client(), &objects)?;
        thread::sleep(SETTLING);
        step(&format!("{kind}: again"));
        let ((window, asked), busy) = stand.record(kind, |stand| {
            let began = Instant::now();
            fetch_all(stand.client(), &objects)?;
            // What is on its way when the last answer is there belongs to it.
            thread::sleep(SETTLING);
            let mut asked = 0;
            for (path, _) in &objects {
                asked += stand.origin().requests_for(path)?;
            }
            Ok((began.elapsed(), asked))
        })?;
        step(&format!("{kind}: idle"));
        let (idle_window, idle) = stand.record(&format!("{kind}-idle"), |_| {
            let began = Instant::now();
            thread::sleep(window);
            Ok(began.elapsed())
        })?;
        let count = objects.len() as f64;
        figures.add(figure, (busy.bytes() as f64 - idle.bytes() as f64) / count);
        raw.insert(
            kind.to_owned(),
            json!({
                "objects": objects.len(),
                "object_bytes": OBJECT_BYTES,
                "origin_requests": asked,
                "wan_bytes": busy.bytes(),
                "packets_to_origin": packets(&busy, true),
                "packets_from_origin": packets(&busy, false),
                "window_s": window.as_secs_f64(),
                "idle_wan_bytes": idle.bytes(),
                "idle_window_s": idle_window.as_secs_f64(),
            }),
        );
        // Each object was asked for once to be stored, and once more to be revalidated.
        let expected = if kind == "fresh" { 1 } else { 2 };
        if asked != expected * objects.len() {
            figures.faults.push(format!(
                "the origin was asked {asked} times for {} objects ({kind})",
                objects.len()
            ));
        }
    }
    figures.raw = raw.into();
    Ok(figures)
}

/// Packets of one direction.
fn packets(crossings: &WanCrossings, is_outward: bool) -> usize {
    let packets = crossings.packets.iter();
    packets
        .filter(|packet| packet.is_outward == is_outward)
        .count()
}

/// Fetches each object over a connection of its own.
fn fetch_all(client: &ClientPlace, objects: &[(String, Vec<u8>)]) -> Result<()> {
    let next = AtomicUsize::new(0);
    let fetch = || -> Result<()> {
        while let Some((path, content)) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
            client.fetch(path, content)?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(fetch)).collect();
        clients.into_iter().try_for_each(|client| {
            client
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}
