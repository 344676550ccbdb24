"""The support tickets that the demo sends: invented for it, in several languages, each with its right team.

The label is only for counting how often the answers agree; it never reaches a worker.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Ticket:
    """A customer's message, its language (ISO 639-1), and the team (of `worker.presets.TRIAGE`) it is for."""

    language: str
    team: str
    text: str


TICKETS: tuple[Ticket, ...] = (
    Ticket(
        "en",
        "billing",
        "I was charged twice for my March subscription. Please refund one of the two payments.",
    ),
    Ticket(
        "de",
        "delivery",
        "Mein Paket sollte am Montag ankommen, die Sendungsverfolgung steht seit vier Tagen still.",
    ),
    Ticket("en", "technical", "The app crashes every time I open the camera since the last update."),
    Ticket(
        "fr",
        "account",
        "Je n'arrive plus à me connecter, le code de vérification n'arrive jamais par e-mail.",
    ),
    Ticket(
        "es",
        "returns",
        "La chaqueta me queda pequeña, quisiera devolverla y cambiarla por una talla más grande.",
    ),
    Ticket("en", "sales", "Do you offer a discount for schools if we buy forty licences at once?"),
    Ticket("ja", "technical", "アプリを起動すると真っ白な画面のままで、何も操作できません。"),
    Ticket("it", "billing", "Sulla fattura di aprile manca la partita IVA, potete mandarmene una corretta?"),
    Ticket(
        "en",
        "delivery",
        "My parcel was left at the wrong address and the neighbour there says she never saw it.",
    ),
    Ticket("pt", "account", "Esqueci minha senha e o e-mail para redefinir não chega, nem na caixa de spam."),
    Ticket("hi", "delivery", "मेरा पार्सल दो हफ़्ते से नहीं आया है, कृपया बताइए कि वह कहाँ है।"),
    Ticket("en", "account", "Someone changed the e-mail address of my account and I can no longer sign in!"),
    Ticket("nl", "technical", "De website geeft steeds een foutmelding als ik mijn bestelling wil afronden."),
    Ticket("pl", "returns", "Dostałem buty w złym rozmiarze, jak mogę je odesłać i wymienić?"),
    Ticket("en", "returns", "You sent me the blue kettle instead of the red one. How do I send it back?"),
    Ticket("tr", "billing", "Kredi kartımdan aynı fatura için iki kez para çekilmiş, lütfen iade edin."),
    Ticket("zh", "sales", "请问企业版的价格是多少？购买一百个账号有折扣吗？"),
    Ticket("en", "technical", "Error 504 on the checkout page, our whole shop is down and we are losing orders."),
    Ticket("ar", "delivery", "وصلت الشحنة متأخرة أسبوعين والصندوق كان مكسوراً من جميع الجوانب."),
    Ticket(
        "ru",
        "account",
        "Не могу войти в личный кабинет: пароль не подходит, а код подтверждения не приходит.",
    ),
    Ticket("en", "billing", "Why is there a service fee of nine dollars on this month's invoice?"),
    Ticket(
        "de",
        "billing",
        "Auf meiner Rechnung steht eine Gebühr, die ich nie bestellt habe. Ich möchte das Geld zurück.",
    ),
    Ticket("fr", "delivery", "Le colis est arrivé complètement écrasé et deux verres sont cassés."),
    Ticket("en", "sales", "Which plan would you recommend for a team of twelve, and what does it cost per year?"),
    Ticket("es", "technical", "La aplicación se cierra sola cuando intento subir una foto."),
    Ticket("ja", "returns", "届いたシャツの色が注文と違うので、返品して交換したいです。"),
    Ticket("en", "returns", "These shoes are too small, can I exchange them for size 44?"),
    Ticket("it", "account", "Vorrei cancellare il mio account e tutti i miei dati personali."),
    Ticket("pt", "delivery", "O rastreamento diz que a encomenda foi entregue, mas não recebi nada."),
    Ticket(
        "en",
        "delivery",
        "The courier never rang the bell and now the tracking page says the package is lost.",
    ),
    Ticket("hi", "billing", "मेरे कार्ड से दो बार पैसे कट गए हैं, कृपया एक भुगतान वापस करें।"),
    Ticket("nl", "sales", "Wat kost het zakelijke abonnement voor vijftig gebruikers, en krijgen wij korting?"),
    Ticket("en", "account", "The verification code never reaches my phone, so I can't log in."),
    Ticket("pl", "technical", "Po aktualizacji aplikacja się zawiesza i trzeba ją uruchamiać od nowa."),
    Ticket("tr", "returns", "Yanlış renkte bir çanta geldi, geri göndermek ve değiştirmek istiyorum."),
    Ticket("en", "technical", "The thermostat shows a blank display and does not react to any button."),
    Ticket("zh", "delivery", "我的包裹显示已签收，但是我根本没有收到。"),
    Ticket("ar", "account", "نسيت كلمة المرور ولا يصلني رمز التحقق على هاتفي."),
    Ticket("en", "billing", "Can I change my payment method from credit card to bank transfer?"),
    Ticket("ru", "returns", "Пришли брюки не того размера, хочу вернуть их и получить другие."),
    Ticket(
        "de",
        "technical",
        "Nach dem Update startet das Programm nicht mehr, es erscheint nur eine Fehlermeldung.",
    ),
    Ticket("en", "sales", "I would like a quote for two hundred headsets delivered to Dublin."),
    Ticket("fr", "billing", "J'ai été débité deux fois pour la même commande, merci de me rembourser."),
    Ticket("es", "delivery", "El repartidor dejó mi paquete en una dirección equivocada."),
    Ticket("en", "returns", "The lamp does not fit our living room. I want to return it and get my money back."),
    Ticket("ja", "billing", "今月の請求書に身に覚えのない料金が含まれています。返金してください。"),
    Ticket("it", "delivery", "Il pacco doveva arrivare martedì, oggi è venerdì e nessuno sa dove sia."),
    Ticket("en", "delivery", "Half of the plates arrived broken, the box was crushed on one side."),
    Ticket("pt", "technical", "O site mostra um erro quando tento pagar com cartão e a página não carrega."),
    Ticket("hi", "account", "मैं अपना पासवर्ड भूल गया हूँ और लॉग इन नहीं कर पा रहा हूँ।"),
    Ticket("en", "account", "Please delete my account and send me a copy of my personal data first."),
    Ticket("nl", "returns", "De trui is te groot, ik wil hem terugsturen en ruilen voor maat M."),
    Ticket("pl", "billing", "Na fakturze jest zła kwota, proszę o korektę i zwrot nadpłaty."),
    Ticket("en", "technical", "Bluetooth keeps disconnecting after a minute, I have restarted everything twice."),
    Ticket("tr", "sales", "Elli kullanıcı için yıllık abonelik fiyatı nedir, indirim yapıyor musunuz?"),
    Ticket("zh", "account", "我的账号无法登录，一直提示密码错误。"),
    Ticket(
        "en",
        "billing",
        "My card was declined although there is enough money on it. What went wrong with the payment?",
    ),
    Ticket("ar", "technical", "التطبيق يتوقف عن العمل كلما حاولت فتح الصفحة الرئيسية."),
    Ticket("ru", "delivery", "Посылка должна была прийти неделю назад, а курьер так и не позвонил."),
    Ticket("en", "sales", "Is the premium plan cheaper if we pay for two years in advance?"),
    Ticket("de", "account", "Jemand hat sich in mein Konto eingeloggt und das Passwort geändert!"),
    Ticket("fr", "returns", "Le manteau est trop grand, comment puis-je le renvoyer et l'échanger ?"),
    Ticket(
        "en",
        "returns",
        "I ordered the wrong colour by mistake, is an exchange still possible after three weeks?",
    ),
    Ticket("es", "sales", "¿Cuánto cuesta el plan anual para una empresa de treinta personas?"),
    Ticket("ja", "delivery", "荷物がまだ届きません。いつ配達されますか？"),
    Ticket("en", "delivery", "Where is my order? It should have been delivered last Friday."),
    Ticket("it", "technical", "Il termostato non si collega più al wifi e mostra un codice di errore."),
    Ticket("pt", "returns", "Quero devolver o vestido, veio no tamanho errado."),
    Ticket("en", "technical", "Your website shows a blank page when I click on 'pay now'."),
    Ticket("zh", "billing", "信用卡被重复扣款了，请尽快退款。"),
    Ticket("ko", "delivery", "주문한 상품이 아직 도착하지 않았는데 배송 조회도 되지 않습니다."),
    Ticket("ko", "account", "비밀번호를 잊어버려서 로그인할 수 없고 인증 메일도 오지 않아요."),
)
