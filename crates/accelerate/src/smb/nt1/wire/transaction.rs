//! The end of a transaction's answer, which may come in several messages under one multiplex id
//! ([MS-CIFS] §2.2.4.46.2, TRANSACTION2; §2.2.4.62.2, NT_TRANSACT; §3.2.5.1.4).

use super::header::{Smb1Header, command};
use super::{WORDS_AT, u16_at, u32_at, word_count};

/// The received part of an answer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TransactionProgress {
    parameters: u64,
    data: u64,
}

impl TransactionProgress {
    /// Takes a message of the answer; whether it was the last.
    pub(crate) fn is_last(&mut self, header: &Smb1Header, message: &[u8]) -> bool {
        let Some([all_parameters, all_data, parameters, data]) = counts(header.command, message)
        else {
            // An error ends it. Without words it is the server's word that it waits for the rest of
            // the request.
            return header.status != 0 || word_count(message) != Ok(0);
        };
        self.parameters += parameters;
        self.data += data;
        header.status & 0xc000_0000 == 0xc000_0000
            || self.parameters >= all_parameters && self.data >= all_data
    }
}

/// Bytes of parameters and data in all, and in this message.
fn counts(of: u8, message: &[u8]) -> Option<[u64; 4]> {
    let short = |at: usize| u16_at(message, WORDS_AT + at).map(u64::from).ok();
    let long = |at: usize| u32_at(message, WORDS_AT + at).map(u64::from).ok();
    let words = word_count(message).ok()?;
    match of {
        command::TRANSACTION | command::TRANSACTION_2 if words >= 10 => {
            Some([short(0)?, short(2)?, short(6)?, short(12)?])
        }
        command::NT_TRANSACT if words >= 18 => Some([long(3)?, long(7)?, long(11)?, long(23)?]),
        _ => None,
    }
}
