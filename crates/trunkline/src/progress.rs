//! Progress display for the user.

use std::cell::RefCell;
use std::io::IsTerminal;
use std::time::Instant;

use host::progress::ProgressReporter;
use indicatif::{ProgressBar, ProgressStyle};

/// Makes a progress bar on a terminal, or plain lines on standard error elsewhere.
pub(crate) fn progress() -> ProgressDisplay {
    let bar = std::io::stderr().is_terminal().then(|| {
        let bar = ProgressBar::new(1000);
        let style = ProgressStyle::with_template("{elapsed_precise} [{bar:24}] {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.enable_steady_tick(std::time::Duration::from_millis(250));
        bar
    });
    ProgressDisplay {
        bar,
        began: Instant::now(),
        last: RefCell::default(),
    }
}

/// Progress display of the lab.
pub(crate) struct ProgressDisplay {
    bar: Option<ProgressBar>,
    began: Instant,
    last: RefCell<String>,
}

impl ProgressDisplay {
    /// Removes the bar.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

impl ProgressReporter for ProgressDisplay {
    fn step(&self, done: f64, text: &str) {
        let text = &vocab::printable(text);
        match &self.bar {
            Some(bar) => {
                bar.set_position((done * 1000.0) as u64);
                bar.set_message(text.clone());
            }
            None if *self.last.borrow() != *text => {
                remark!("{:6.1} s  {text}", self.began.elapsed().as_secs_f64());
                text.clone_into(&mut self.last.borrow_mut());
            }
            None => {}
        }
    }

    fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(text),
            None => remark!("{text}"),
        }
    }
}
