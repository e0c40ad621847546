//! Output of the program: results on standard output, remarks on standard error.
//!
//! The reader of a pipe may close it early (`| head`). That is no failure: later output is
//! discarded, and the program runs to its end and its exit code, which is still right. `println!`
//! and similar macros panic there, so the crate's lints refuse them.

use std::io::{self, Write};

/// Like `println!`, but tolerates a closed standard output.
macro_rules! say {
    ($($part:tt)*) => {
        $crate::output::write_line(&mut std::io::stdout(), format_args!($($part)*))
    };
}

/// Like `print!`, but tolerates a closed standard output.
macro_rules! show {
    ($($part:tt)*) => {
        $crate::output::write_text(&mut std::io::stdout(), format_args!($($part)*))
    };
}

/// Like `eprintln!`, but tolerates a closed standard error.
macro_rules! remark {
    ($($part:tt)*) => {
        $crate::output::write_line(&mut std::io::stderr(), format_args!($($part)*))
    };
}

/// Writes a text, and ignores a closed output.
pub(crate) fn write_text(out: &mut impl Write, text: std::fmt::Arguments<'_>) {
    // There is no other place to complain of it.
    let _ = out.write_fmt(text);
}

/// Writes a line, and ignores a closed output.
pub(crate) fn write_line(out: &mut impl Write, line: std::fmt::Arguments<'_>) {
    // There is no other place to complain of it.
    let _ = writeln!(out, "{line}");
}

/// Standard output, which its reader may have closed.
#[derive(Debug)]
pub(crate) struct StandardOutput<W = io::Stdout> {
    out: W,
    is_read: bool,
}

impl StandardOutput {
    /// Standard output.
    pub(crate) fn new() -> Self {
        Self::over(io::stdout())
    }
}

impl<W> StandardOutput<W> {
    fn over(out: W) -> Self {
        Self { out, is_read: true }
    }

    /// Tells whether a reader is still there, as far as is known.
    pub(crate) fn is_read(&self) -> bool {
        self.is_read
    }

    fn bear<T>(&mut self, written: io::Result<T>, otherwise: T) -> io::Result<T> {
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.is_read = false;
                Ok(otherwise)
            }
            written => written,
        }
    }
}

impl<W: Write> Write for StandardOutput<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if !self.is_read {
            return Ok(bytes.len());
        }
        let written = self.out.write(bytes);
        self.bear(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if !self.is_read {
            return Ok(());
        }
        let flushed = self.out.flush();
        self.bear(flushed, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output that takes so many bytes and then fails with this error.
    struct FailingPipe(usize, io::ErrorKind);

    impl Write for FailingPipe {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = bytes.len().min(self.0);
            self.0 -= taken;
            match taken {
                0 => Err(self.1.into()),
                taken => Ok(taken),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn closed_output_is_noticed_without_failure() {
        let mut out = StandardOutput::over(FailingPipe(3, io::ErrorKind::BrokenPipe));
        out.write_all(b"abc").unwrap();
        assert!(out.is_read());
        out.write_all(b"defgh").unwrap();
        out.flush().unwrap();
        assert!(!out.is_read());
    }

    #[test]
    fn a_full_disk_is_a_failure() {
        let mut out = StandardOutput::over(FailingPipe(3, io::ErrorKind::StorageFull));
        assert!(out.write_all(b"abcd").is_err());
    }
}
