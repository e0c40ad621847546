//! Text of others' that people are shown.

/// Text that moves no cursor, sets no colour and turns no line around: names that a host sends, or
/// that files have, may hold anything. Each character that could is a question mark: controls, and
/// the format characters that are not seen, among them those of Unicode Annex 9 (Unicode
/// Bidirectional Algorithm, §2 Directional Formatting Characters).
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|letter| if is_shown(letter) { letter } else { '?' })
        .collect()
}

fn is_shown(letter: char) -> bool {
    let is_format = matches!(
        letter,
        '\u{ad}'
            | '\u{61c}'
            | '\u{180e}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}'
    );
    !letter.is_control() && !is_format
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_control_characters_become_question_marks() {
        assert_eq!(printable("Zoë\\кадры 東京 €"), "Zoë\\кадры 東京 €");
        assert_eq!(printable("a\x1b[2J\r\n\t\x07\u{9b}b"), "a?[2J?????b");
        assert_eq!(
            printable("\u{202e}nimda\u{2066}\u{200f}\u{feff}"),
            "?nimda???"
        );
    }
}
