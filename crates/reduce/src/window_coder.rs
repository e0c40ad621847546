//! Coders of a flow's window: there are two, and decoders cannot distinguish them.
//!
//! ```text
//!  text           ─► WindowMatcher ─► sequences ─► zstd's entropy stage     (`simd::sequences::ZstdFrame`)
//!  anything else  ─► zstd at its level
//! ```
//! Which of them is known when the window begins, by its first record.

use simd::sequences::ZstdFrame;
use zstd_safe::zstd_sys::ZSTD_EndDirective;
use zstd_safe::{CCtx, CParameter, InBuffer, OutBuffer, ResetDirective, SafeResult};

use crate::config::WINDOW_LOG;
use crate::matcher::{WindowMatcher, is_text};

/// zstd's level whose size the matcher reaches on text; others are asked for their own sake.
const MATCHERS_LEVEL: i32 = 3;

/// Coder of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CoderKind {
    /// Our own matcher, for text.
    Matcher,
    /// zstd at this level.
    Zstd { level: i32 },
}

/// A window's coder, with its history.
pub(crate) struct WindowCoder(CoderBackend);

enum CoderBackend {
    Matcher {
        frame: Box<ZstdFrame>,
        matcher: Box<WindowMatcher>,
    },
    Zstd(CCtx<'static>),
}

impl CoderKind {
    /// Selects the coder that suits these bytes.
    pub(crate) fn for_pieces(pieces: &[&[u8]], length: usize, level: i32) -> Self {
        if level == MATCHERS_LEVEL && is_text(pieces, length) {
            Self::Matcher
        } else {
            Self::Zstd { level }
        }
    }
}

impl WindowCoder {
    pub(crate) fn new() -> Self {
        Self(CoderBackend::Zstd(CCtx::create()))
    }

    /// Returns `true` if it uses this coder, whatever the level.
    pub(crate) fn uses(&self, means: CoderKind) -> bool {
        match means {
            CoderKind::Matcher => matches!(self.0, CoderBackend::Matcher { .. }),
            CoderKind::Zstd { .. } => matches!(self.0, CoderBackend::Zstd(_)),
        }
    }

    /// Begins a window; says whether that could be done.
    pub(crate) fn begin(&mut self, means: CoderKind) -> bool {
        if !self.uses(means) {
            let Some(other) = CoderBackend::new(means) else {
                return false;
            };
            self.0 = other;
        }
        match (&mut self.0, means) {
            (CoderBackend::Matcher { frame, matcher }, _) => {
                matcher.begin();
                frame.begin()
            }
            (CoderBackend::Zstd(context), CoderKind::Zstd { level }) => {
                prepare(context, level).is_ok()
            }
            (CoderBackend::Zstd(_), CoderKind::Matcher) => false,
        }
    }

    /// Adds the next bytes of the window, coded and flushed, to `out`. Returns `false` if that
    /// failed; the window then has to begin again.
    pub(crate) fn code(&mut self, pieces: &[&[u8]], length: usize, out: &mut Vec<u8>) -> bool {
        match &mut self.0 {
            CoderBackend::Matcher { frame, matcher } => {
                if !frame.has_room(length) {
                    return false;
                }
                for piece in pieces {
                    frame.push(piece);
                }
                let find = |history: &[u8], start, found: &mut Vec<_>| {
                    matcher.find(history, start, found);
                };
                frame.code(find, out)
            }
            CoderBackend::Zstd(context) => {
                out.reserve(zstd_safe::compress_bound(length));
                compress_blocks(context, pieces, out)
            }
        }
    }
}

impl CoderBackend {
    fn new(means: CoderKind) -> Option<Self> {
        match means {
            CoderKind::Matcher => Some(Self::Matcher {
                frame: Box::new(ZstdFrame::new(WINDOW_LOG)?),
                matcher: Box::new(WindowMatcher::new()),
            }),
            CoderKind::Zstd { .. } => Some(Self::Zstd(CCtx::create())),
        }
    }
}

/// Codes the next bytes of a window by zstd alone; says whether all went well.
fn compress_blocks(context: &mut CCtx<'static>, pieces: &[&[u8]], out: &mut Vec<u8>) -> bool {
    let mut to = OutBuffer::around(out);
    let takes_on = pieces.iter().all(|piece| {
        let mut from = InBuffer::around(piece);
        let goes_on = ZSTD_EndDirective::ZSTD_e_continue;
        let done = context.compress_stream2(&mut to, &mut from, goes_on);
        done.is_ok() && from.pos() == piece.len()
    });
    let flush = ZSTD_EndDirective::ZSTD_e_flush;
    takes_on && context.compress_stream2(&mut to, &mut InBuffer::around(&[]), flush) == Ok(0)
}

/// Makes a context as new, with the parameters of its level.
fn prepare(context: &mut CCtx<'static>, level: i32) -> SafeResult {
    context.reset(ResetDirective::SessionAndParameters)?;
    context.set_parameter(CParameter::CompressionLevel(level))?;
    context.set_parameter(CParameter::WindowLog(WINDOW_LOG))?;
    if level == 3 {
        // Twice the places of long matches that the level has otherwise, which makes up for what
        // flushing each record costs, and half those of short ones, which is faster.
        context.set_parameter(CParameter::HashLog(18))?;
        context.set_parameter(CParameter::ChainLog(15))?;
    }
    Ok(0)
}
