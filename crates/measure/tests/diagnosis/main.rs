//! Diagnosis on labelled cases in virtual time: paths drawn from seeds, measured and judged.
//!
//! `cargo test` runs a hundred small ones. The figures of docs/guides/diagnosis.md come from
//! `cargo test --release -p measure --test diagnosis -- --ignored --nocapture`.

#![allow(clippy::unwrap_used)]
// A report for people, and which cases it is about.
#![allow(clippy::disallowed_macros, clippy::disallowed_methods)]

mod case;
mod score;
mod tcp;
mod transfer;
mod world;

use case::{Case, Effort, Half};
use measure::diagnosis::diagnose;
use score::{Score, Truth};

/// Judges one case two-ended; complains about it when `verbose`.
fn judge(score: &mut Score, case: &Case, verbose: bool) {
    let findings = diagnose(&case.measure());
    let causes = case.causes();
    let truth = Truth {
        rate: case.rate.bits_per_second() as f64,
        burst: Some(case.burst as f64),
    };
    if !score.count(&causes, truth, &findings) && verbose {
        println!(
            "seed {}: {:?} {} rtt {:?} burst {} queue {} loss {:.4} cross {} flows {}\n  there {causes:?}",
            case.seed,
            case.kind,
            case.rate,
            case.rtt,
            case.burst,
            case.queue,
            case.loss,
            case.cross,
            case.connections,
        );
        for finding in findings {
            println!(
                "  {} {:.2} {:?} {:?}",
                finding.cause.name(),
                finding.confidence,
                finding.evidence,
                finding.parameters.named()
            );
        }
    }
}

fn judged(seeds: impl Iterator<Item = u64>, effort: Effort, verbose: bool) -> Score {
    let mut score = Score::default();
    for seed in seeds {
        judge(&mut score, &Case::draw(seed, effort), verbose);
    }
    score
}

fn seeds(half: Half, count: u64) -> impl Iterator<Item = u64> {
    (0..count).map(move |index| 2 * index + u64::from(half == Half::HeldOut))
}

#[test]
fn a_hundred_small_cases_are_told_apart() {
    let score = judged(
        seeds(Half::HeldOut, 50).chain(seeds(Half::Tuning, 50)),
        Effort::Quick,
        true,
    );
    println!("{}", score.report("a hundred small cases"));
    assert!(
        score.bucket.right * 100 >= score.bucket.all * 98,
        "{}",
        score.bucket
    );
    assert!(
        score.exact.right * 100 >= score.exact.all * 93,
        "{}",
        score.exact
    );
}

#[test]
#[ignore = "takes minutes; gives the figures of docs/guides/diagnosis.md"]
fn the_figures_of_two_ended_diagnosis() {
    // TRUNKLINE_CASES=START:COUNT looks at other cases than the documented ones.
    let asked = std::env::var("TRUNKLINE_CASES").unwrap_or_else(|_| "0:1000".to_owned());
    let (start, count) = asked.split_once(':').unwrap();
    let (start, count): (u64, u64) = (start.parse().unwrap(), count.parse().unwrap());
    for half in [Half::Tuning, Half::HeldOut] {
        let score = judged(
            seeds(half, start + count).skip(start as usize),
            Effort::Full,
            true,
        );
        println!("{}", score.report(&format!("{half:?}, {count} cases")));
        if half == Half::HeldOut {
            assert!(score.bucket.interval().0 >= 0.98, "{}", score.bucket);
            assert!(score.exact.interval().0 >= 0.95, "{}", score.exact);
        }
    }
}
